"""`timedrun race command`: interleaved runs of command lines, or of one command line at several commits. `timedrun run
command` is such a race of one side, `timedrun sweep command` one of command lines at several budgets."""

import shlex
import shutil
import tomllib
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from judging.ground import ledger, stdio
from judging.ground.errors import ExitCode, PreflightError, UsageError, nearest
from judging.ground.race_labels import letters
from judging.ground.result_files import make_new_folder, write_json
from mlevents import keys, record
from mlevents.terminal_escape import printable, shortened
from timedrun.commands.conduct import conduct, known_race, verdict_options
from timedrun.commands.options import above_zero, add_rounds, add_search, add_verdict, at_least
from timedrun.racing import race_file
from timedrun.racing.checkouts import WORKTREE, Revision, checked_out, differences, hint, revisions
from timedrun.racing.command_run import OUTPUT, CommandRun
from timedrun.racing.command_side import CommandSide, side_in
from timedrun.racing.command_source import source_of
from timedrun.racing.command_tuning import KEPT, PRESET, SPLIT, first_trials, report_of
from timedrun.racing.race_file import (
    BUDGET,
    COMMANDS,
    CONTROL,
    Budget,
    Comparison,
    Race,
    Tuned,
    Turn,
    paths_of,
    side_file,
)
from timedrun.racing.schedule import FINE, schedule
from timedrun.run.verdict import verdict_of
from timedrun.storage.source_copies import digest

SETTINGS: Final = (*KEPT, "minutes")
"""Options that are settings of every side."""
LAST_BYTES: Final = 4096  # of the output of a failed run, in which a missing file is named
LONGEST_LABEL: Final = 40
"""Characters of a command that is its own label; a longer one is labelled by its letter and the words of its own."""
PRESETS: Final = Path(race_file.__file__).with_name("presets.toml")
VERBS: Final = {
    "race": ("Run command lines N times each, interleaved; check, score, plot and compare them.", 5),
    "run": ("Run a command line once, or --runs times, on the clock.", 1),
    "tune": ("Search values of each command line, in equal machine time, and write the chosen ones for a race.", 1),
    "sweep": ("Run command lines at several budgets, each run to its end, for curves of quality against time.", 3),
}
"""What each verb does with commands, and how many runs it makes unless told."""
EPILOG: Final = """\
The clock is timedrun's: from the start of the process (or a line with --start) until the first evaluation that reaches
the target (or a line with --stop), as the lines arrive. Each run becomes an MLPerf log with its command, environment,
source and the machine's load.

  timedrun race command 'python train.py' 'python train.py --lr 0.02' \\
      --quality 'val_loss:{}' --target 3.28 --lower --runs 8
  timedrun race command --at main --at my-branch --quality json:accuracy --target 0.94 -- python train.py
  timedrun run command 'torchrun --nproc_per_node 8 train_gpt.py' --preset modded-nanogpt --target 3.28
  timedrun sweep command 'python train.py --steps {budget}' --budgets 100,200,400 --quality json:accuracy --target 0.94
  timedrun tune command 'python train.py --lr {lr:0.01..1} --batch {batch:16..256}' 'python new.py --lr {lr:0.01..1}' \\
      --quality json:accuracy --target 0.94 --minutes 30 --split 'last 5,000 training images'

A file of TOML may hold the options, with `sides` as a list of command lines or of {command, label}.
"""


def command_parser(verb: str = "race") -> ArgumentParser:
    """Return the parser of the words after `timedrun race command`, or that of another of `VERBS`."""
    description, runs = VERBS[verb]
    parser = ArgumentParser(
        prog=f"timedrun {verb} command",
        description=description,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("sides", nargs="*", metavar="COMMAND", help="command line of a side, or a file of TOML with the whole race")
    add("--preset", metavar="NAME", help=f"read the output of a known script: {', '.join(presets())}")
    add("--quality", help="pattern of an evaluation with {} for its value, such as 'val_loss:{}'; json:KEY; or mllog")
    add("--target", type=float, help="quality at which the clock stops; of a sweep only recorded")
    add("--lower", action=BooleanOptionalAction, help="lower quality is better")
    add("--metric", help="name of the quality in tables (default: quality)")
    add("--start", metavar="PATTERN", help="line at which the clock starts (default: the process's start)")
    add("--stop", metavar="PATTERN", help="line at which the clock stops (default: the target is reached)")
    add("--stop-at-target", action="store_true", help="end the command at the first evaluation that reaches the target")
    add("--reported", metavar="PATTERN", help="time that the script prints: {seconds}, {ms} or {minutes}")
    add("--log", metavar="FILE", help="read this file, which the command writes, in place of its output; may have *")
    add("--seed-variable", metavar="NAME", help="environment variable with the seed (default: SEED); {seed} works too")
    add("--results", help=f"folder of the race (default: runs/command/{verb}_N)")
    add("--json", action="store_true", help="print race.json")
    known = {"verb": verb, "benchmark": COMMANDS, "parser": parser}
    parser.set_defaults(**known, budgets=[], until_decided=False, control=0, keep_if=None)
    parser.set_defaults(**dict.fromkeys(PRESET))
    if verb == "tune":
        stated = f"data that the trials are evaluated on, in the variable {SPLIT} of each, recorded as stated"
        add("--split", metavar="TEXT", default="", help=stated)
        add_search(parser)
        parser.set_defaults(repo=".", at=None)
        return parser
    add("--minutes", type=at_least(0, float), help="end a run that takes longer (default: no limit)")
    add("--repo", metavar="FOLDER", default=".", help="repository of --at (default: this one)")
    add("--at", action="append", metavar="COMMIT", help=f"a side is the one command at this commit, or at `{WORKTREE}`")
    add("--build", metavar="COMMAND", default="", help="run in the folder of each commit first")
    add("--share", action="append", default=[], metavar="PATH", help="untracked data, linked into each commit's folder")
    add_rounds(parser, runs)
    if verb == "race":
        add_verdict(parser)
    if verb == "sweep":
        given = "numbers in place of {budget} in each command, such as 100,200,400"
        add("--budgets", type=budgets_of, default=[], metavar="N,N,...", help=given)
    return parser


def presets() -> dict[str, dict[str, Any]]:
    """Return the options of each preset by its name."""
    return tomllib.loads(PRESETS.read_text())


def budgets_of(text: str) -> list[str]:
    """Parse budgets, as typed, in the order of their numbers."""
    budgets = sorted(text.split(","), key=above_zero)
    if len({*map(float, budgets)}) < len(budgets):
        raise ArgumentTypeError(f"{text} has a budget twice")
    return [budget.strip() for budget in budgets]


def command_race(arguments: Namespace) -> ExitCode:
    """Run, check, score, plot and compare commands; the last side is compared with each of the others. The exit code of
    `timedrun run command` is that of the run, the worst one of several."""
    known = arguments.resume or arguments.report
    if known and arguments.sides:
        raise UsageError("--resume and --report take the plan from race.json; leave out commands.")
    folder, planned = (Path(known), known_race(arguments, Path(known))) if known else new_race(arguments)
    if planned.benchmark != COMMANDS:
        raise UsageError(f"{folder} is a race of {planned.benchmark}; leave out the word command.")
    if (verb := planned.verb) != arguments.verb:
        option = "resume" if arguments.resume else "report"
        raise UsageError(f"{folder} is of another verb: `timedrun {verb} command --{option} {folder}`.")
    revisions_of = {side: Revision(**values) for side, values in planned.options.get("commits", {}).items()}
    repository = Path(planned.options.get("repo", "."))
    options = {name: planned.options[name] for name in ("build", "shared") if name in planned.options}
    with ExitStack() as stack:
        try:
            places = stack.enter_context(checked_out(repository, {} if arguments.report else revisions_of, **options))
        except PreflightError:
            if not known:
                shutil.rmtree(folder)  # made just now
            raise

        def start(turn: Turn, label: str) -> tuple[int, int]:
            side, paths = replace(side_of(folder, turn.side), seed=turn.seed), paths_of(folder, turn)
            place = places[turn.side] if revisions_of else Path.cwd()
            code, interrupted = CommandRun(side, paths, runs=planned.runs, label=label, directory=place).run()
            verdict = verdict_of(paths)
            stdio.message(printable(f"{label}: {verdict.words}"))
            if revisions_of and verdict.code not in FINE:
                last = (paths.side / OUTPUT).read_bytes()[-LAST_BYTES:].decode(errors="replace")
                if missing := hint(repository, place, last.splitlines()):
                    stdio.message(printable(f"{label}: {missing}"))
            return (verdict.code if code in FINE else code), interrupted

        if arguments.resume:
            require_same_source(folder, planned, places)
        code = conduct(arguments, folder, planned, start, report_of(folder, planned) if planned.tuning else None)
    if verb == "run" and code in (ExitCode.OK, ExitCode.ERROR):
        ends = {verdict_of(paths_of(folder, turn)).code for turn in planned.turns}
        return ExitCode.TARGET_NOT_REACHED if ends <= {*FINE} and ExitCode.TARGET_NOT_REACHED in ends else code
    return code


def require_same_source(folder: Path, planned: Race, places: Mapping[str, Path]) -> None:
    """Raise UsageError if a side's command has another source here, or in its place, than its finished runs had."""
    for turn in planned.turns:
        paths = paths_of(folder, turn)
        if turn.status != "finished" or not paths.log.is_file():
            continue
        found = source_of(side_of(folder, turn.side).command, places.get(turn.side, Path.cwd()))
        if digest(found) != record.read(paths.log).value(keys.SOURCE_SHA256):
            raise UsageError(
                f"{planned.sides[turn.side]}: its command has another source here than in its run {turn.number}, so the"
                " runs would not be of one program; nothing was run. Resume the race in the folder where it began, with"
                f" the source of which {paths.side} has copies, or make a new race."
            )


def side_of(folder: Path, name: str) -> CommandSide:
    """Return the side that the race in `folder` recorded. Raises UsageError if it cannot be read."""
    return side_in(side_file(folder, name))


def new_race(arguments: Namespace) -> tuple[Path, Race]:
    """Plan a race of commands, find what can be found before it, and write its folder."""
    verb = arguments.verb
    if arguments.quality is None or arguments.target is None:
        stops = "which a sweep records" if verb == "sweep" else "where the clock stops"
        raise UsageError(f"give --quality or --preset, what is read of the output, and --target, {stops}.")
    given = KEPT if verb == "tune" else SETTINGS  # whose --minutes are those of each side
    settings = {name: value for name in given if (value := getattr(arguments, name)) is not None}
    labelled, named = sides_of(arguments)
    if verb == "race" and len(labelled) < 2:
        raise UsageError("a race needs two sides: give two commands, or one and --at twice; the same one is a control.")
    if verb == "run" and len(labelled) != 1:
        raise UsageError(f"`run command` takes one command, here are {len(labelled)}; `race command` takes several.")
    sides = {letter: CommandSide(name=letter, command=command, **settings) for letter, (_, command) in labelled.items()}
    labels = {letter: label for letter, (label, _) in labelled.items()}
    *slower, last = sides
    changed = [line for side in slower if named for line in differences(Path(arguments.repo), named[side], named[last])]
    budgets: dict[str, Budget] = {}
    if verb == "sweep":
        sides, budgets = at_budgets(sides, labels, arguments.budgets)
        slower = []
        named = {name: named[letter] for name in sides if (letter := name.partition("_")[0]) in named}
        labels = {name: budget.label for name, budget in budgets.items()}
    tuning = None
    if verb == "tune":
        values = {"minutes": arguments.minutes, "seed": arguments.first_seed, "split": arguments.split}
        tuning, sides, labels = first_trials(sides, labels, **values)
        slower = []
    if arguments.control:
        sides[CONTROL] = replace(sides["a"], name=CONTROL)
        labels[CONTROL] = f"{labels['a']} (control)"
        named |= {CONTROL: named["a"]} if named else {}
    options: dict[str, Any] = {}
    if named:
        options = {"repo": arguments.repo, "build": arguments.build, "shared": arguments.share}
        options["commits"] = {side: asdict(revision) for side, revision in named.items()}
    planned = Race(
        benchmark=COMMANDS,
        runs=arguments.runs,
        options=options,
        sides=labels,
        commands={label: command for label, command in labelled.values() if label != command and not named},
        comparisons=[Comparison(row=labels[letter], slow=letter, fast=last) for letter in slower],
        budgets=budgets,
        tuning=tuning,
        tuned={letter: record for letter in labels if (record := arguments.tuned.get(letter))},
        differences=changed,
        **verdict_options(arguments, len(labelled)),
        no_package={
            "sweep": "for a sweep",
            "tune": "for a tuning",
            "run": "for `run command`; give FOLDER/a to `timedrun package`",
        }.get(verb, ""),
        turns=schedule(
            [side for side in sides if side != CONTROL],
            arguments.runs,
            arguments.first_seed,
            unpaired_seeds=arguments.unpaired_seeds,
            control=arguments.control,
        ),
    )
    sources = {letter: source_of(side.command, Path.cwd()) for letter, side in sides.items()}
    blind = ", ".join(labels[letter] for letter, side in sides.items() if not side.names_seed(sources[letter]))
    if blind and len({turn.seed for turn in planned.turns}) > 1:
        name = arguments.seed_variable or CommandSide.seed_variable
        stdio.message(
            printable(f"{blind}: neither the command nor its source names {name}, so that all runs may have one seed;")
            + f" write {{seed}} in the command, or read the variable {name}"
        )
    folder = make_new_folder(arguments.results, Path("runs") / COMMANDS, verb)
    (folder / "sides").mkdir()
    ledger.place(folder).touch()
    for letter, side in sides.items():
        write_json(side_file(folder, letter), asdict(side))
    return folder, planned


def at_budgets(
    sides: Mapping[str, CommandSide], labels: Mapping[str, str], texts: Sequence[str]
) -> tuple[dict[str, CommandSide], dict[str, Budget]]:
    """Return each of the sides at each budget, by a folder of its own, and its place on its curve. Raises UsageError if
    there are no budgets, or a command does not get them."""
    if not texts or any(BUDGET not in side.command for side in sides.values()):
        raise UsageError(f"a sweep needs --budgets, such as 100,200,400, and the word {BUDGET} in each command.")
    swept: dict[str, CommandSide] = {}
    budgets: dict[str, Budget] = {}
    for (letter, side), text in product(sides.items(), texts):
        name, command = f"{letter}_{text}", side.command.replace(BUDGET, text)
        swept[name] = replace(side, name=name, command=command, to_end=not side.waits_for_stop)
        budgets[name] = Budget(curve=labels[letter], ratio=float(text), text=text)
    return swept, budgets


def sides_of(arguments: Namespace) -> tuple[dict[str, tuple[str, str]], dict[str, Revision]]:
    """Return label and command of each side by its letter, and the commits of --at, if given, by letter, too. Raises
    UsageError without a command where there are commits."""
    given = list(zip(arguments.labels, arguments.sides, strict=True))
    named = revisions(Path(arguments.repo), arguments.at) if arguments.at else []
    if named:
        if not given:
            raise UsageError("--at needs the command that is run at each commit; give it after --.")
        words = arguments.sides  # one is a line of the shell, several are the words of one command
        command = shlex.join(words) if len(words) > 1 else words[0]
        given = [(revision.name, command) for revision in named]
    labelled: dict[str, tuple[str, str]] = {}
    shared = set.intersection(*({*command.split()} for _, command in given)) if len(given) > 1 else set()
    for letter, (label, command) in zip(letters(len(given)), given, strict=True):
        if label != command:
            label = " ".join(label.splitlines())
        if label == command and (len(label) > LONGEST_LABEL or "\n" in label):
            own = " ".join(word for word in label.split() if word not in shared)
            label = shortened(f"{letter}: {own}", LONGEST_LABEL) if own else letter
        while label in [other for other, _ in labelled.values()]:
            label += " (again)"
        labelled[letter] = (label, command)
    return labelled, dict(zip(labelled, named, strict=False))


def parsed(verb: str, words: Sequence[str]) -> Namespace:
    """Parse the words after `timedrun race command`, or another verb's: they count more than a file of TOML, and that
    more than a preset. Raises UsageError for an unknown preset."""
    arguments = command_parser(verb).parse_args(words)
    arguments.labels, arguments.tuned = arguments.sides, {}
    if len(arguments.sides) == 1 and arguments.sides[0].endswith(".toml"):
        options, settings, sides = read_race(Path(given := arguments.sides[0]), verb)
        arguments = command_parser(verb).parse_args([*options, *words])
        vars(arguments).update(settings)
        arguments.sides, arguments.labels = [command for _, command, _ in sides], [label for label, _, _ in sides]
        arguments.tuned = {
            letter: Tuned.read(record, {"command": command}, Path(given))
            for letter, (_, command, record) in zip(letters(len(sides)), sides, strict=True)
        }
    if (name := arguments.preset) is not None:
        if name not in (known := presets()):
            raise UsageError(f"there is no preset {name!r}.{nearest(name, known)} Presets: {', '.join(known)}.")
        own = ("lower", "metric") if arguments.quality is not None else ()
        for option, value in known[name].items():
            if option not in own and getattr(arguments, option) is None:
                setattr(arguments, option, value)
    return arguments


def read_race(path: Path, verb: str) -> tuple[list[str], dict[str, Any], list[tuple[str, str, Any]]]:
    """Return the options, as words, the settings of a preset, and label, command and record of the tuning of each side
    that a file of TOML holds.
    Raises UsageError for a file that is none, a name that is no option, and a side without a command."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}.") from None
    settings: dict[str, Any] = {name: values.pop(name) for name in PRESET if name in values}
    parser = command_parser(verb)
    known = {action.dest for action in parser._actions} - {"help", "json", "resume", "report"}
    if unknown := values.keys() - known:
        raise UsageError(f"{path}: no option {', '.join(sorted(unknown))}; a race has {', '.join(sorted(known))}.")
    words: list[str] = []
    sides: list[tuple[str, str, Any]] = []
    for name, value in values.items():
        value = ",".join(map(str, value)) if name == "budgets" and isinstance(value, list) else value
        for item in value if isinstance(value, list) else [value]:
            if name != "sides":
                option = f"--{name.replace('_', '-')}"
                flags = (
                    [option] if item else [f"--no-{name}"] if f"--no-{name}" in parser._option_string_actions else []
                )
                words += flags if isinstance(item, bool) else [f"{option}={item}"]
            elif isinstance(item, str):
                sides.append((item, item, None))
            elif isinstance(item, dict) and isinstance(command := item.get("command"), str):
                sides.append((str(item.get("label", command)), command, item.get("tuning")))
            else:
                raise UsageError(f"{path}: a side is {item!r}, neither a command line nor a table with `command`.")
    return words, settings, sides
