"""`timedrun race command`: interleaved runs of command lines, or of one command line at several commits."""

from __future__ import annotations

import tomllib
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import cattrs

from judging.ground import ledger
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import make_new_folder, read_json, write_json
from timedrun.commands.conduct import conduct, side_file, verdict_options
from timedrun.commands.options import add_rounds, add_verdict, at_least
from timedrun.race import race_file
from timedrun.race.checkouts import WORKTREE, Revision, checked_out, differences, revisions
from timedrun.race.command_run import CommandRun
from timedrun.race.command_side import CommandSide
from timedrun.race.race_file import COMMANDS, CONTROL, Comparison, Race, Turn, letters, paths_of
from timedrun.race.schedule import schedule

SETTINGS: Final = ("quality", "target", "lower", "metric", "start", "stop", "reported", "seed_variable", "minutes")
"""Options that are settings of every side."""
LONGEST_LABEL: Final = 40
"""Characters of a command that is its own label; a longer one is labelled by its letter and the words of its own."""
EPILOG: Final = """\
The clock is timedrun's: from the start of the process (or a line with --start) until the first evaluation that reaches
the target (or a line with --stop), as the lines arrive. Each run becomes an MLPerf log with its command, environment,
source and the machine's load.

  timedrun race command 'python train.py' 'python train.py --lr 0.02' \\
      --quality 'val_loss:([0-9.]+)' --target 3.28 --lower --runs 8
  timedrun race command --at main --at my-branch --quality json:accuracy --target 0.94 -- python train.py

A file of TOML may hold the options, with `sides` as a list of command lines or of {command, label}.
"""


def command_parser() -> ArgumentParser:
    """Return the parser of the words after `timedrun race command`."""
    parser = ArgumentParser(
        prog="timedrun race command",
        description="Run command lines N times each, interleaved; check, score, plot and compare them.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("sides", nargs="*", metavar="COMMAND", help="command line of a side, or a file of TOML with the whole race")
    add("--quality", help="regular expression of an evaluation with a group for its value; json:KEY; or mllog")
    add("--target", type=float, help="quality at which the clock stops")
    add("--lower", action="store_true", default=None, help="lower quality is better")
    add("--metric", help="name of the quality in tables (default: quality)")
    add("--start", metavar="PATTERN", help="line at which the clock starts (default: the process's start)")
    add("--stop", metavar="PATTERN", help="line at which the clock stops (default: the target is reached)")
    add(
        "--reported",
        metavar="PATTERN",
        help="time that the script prints: (?P<seconds>...), (?P<ms>) or (?P<minutes>)",
    )
    add("--seed-variable", metavar="NAME", help="environment variable with the seed (default: SEED); {seed} works too")
    add("--minutes", type=at_least(0, float), help="end a run that takes longer (default: no limit)")
    add("--repo", metavar="FOLDER", default=".", help="repository of --at (default: this one)")
    add("--at", action="append", metavar="COMMIT", help=f"a side is the one command at this commit, or at `{WORKTREE}`")
    add("--build", metavar="COMMAND", default="", help="run in the folder of each commit first")
    add("--share", action="append", default=[], metavar="PATH", help="untracked data, linked into each commit's folder")
    add("--results", help="folder of the race (default: runs/command/race_N)")
    add("--json", action="store_true", help="print race.json")
    add_rounds(parser, 5)
    add_verdict(parser)
    parser.set_defaults(verb="race", benchmark=COMMANDS)
    return parser


def command_race(arguments: Namespace) -> ExitCode:
    """Run, check, score, plot and compare commands; the last side is compared with each of the others."""
    known = arguments.resume or arguments.report
    if known and arguments.sides:
        raise UsageError("--resume and --report take the plan from race.json; leave out commands.")
    folder, planned = (Path(known), race_file.load(Path(known))) if known else new_race(arguments)
    if planned.benchmark != COMMANDS:
        raise UsageError(f"{folder} is a race of {planned.benchmark}; leave out the word command.")
    revisions_of = {side: Revision(**values) for side, values in planned.options.get("commits", {}).items()}
    repository = Path(planned.options.get("repo", "."))
    options = {name: planned.options[name] for name in ("build", "shared") if name in planned.options}
    with checked_out(repository, {} if arguments.report else revisions_of, **options) as places:

        def start(turn: Turn, label: str) -> tuple[int, int]:
            side = replace(side_of(folder, turn.side), seed=turn.seed)
            place = places[turn.side] if revisions_of else Path.cwd()
            return CommandRun(side, paths_of(folder, turn), runs=planned.runs, label=label, directory=place).run()

        return conduct(arguments, folder, planned, start)


def side_of(folder: Path, name: str) -> CommandSide:
    """Return the side that the race in `folder` recorded. Raises UsageError if it cannot be read."""
    try:
        return cattrs.structure(read_json(side_file(folder, name)), CommandSide)
    except (cattrs.BaseValidationError, TypeError) as error:
        raise UsageError(f"{side_file(folder, name)}: {'; '.join(cattrs.transform_error(error))}.") from None


def new_race(arguments: Namespace) -> tuple[Path, Race]:
    """Plan a race of commands, find what can be found before it, and write its folder."""
    if arguments.quality is None or arguments.target is None:
        raise UsageError("give --quality, what is read of the output, and --target, where the clock stops.")
    settings = {name: value for name in SETTINGS if (value := getattr(arguments, name)) is not None}
    labelled, named = sides_of(arguments)
    if len(labelled) < 2:
        raise UsageError("a race needs two sides: give two commands, or one and --at twice; the same one is a control.")
    sides = {letter: CommandSide(name=letter, command=command, **settings) for letter, (_, command) in labelled.items()}
    labels = {letter: label for letter, (label, _) in labelled.items()}
    *slower, last = sides
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
        differences=[
            line for side in slower if named for line in differences(Path(arguments.repo), named[side], named[last])
        ],
        **verdict_options(arguments, len(labelled)),
        no_package="for commands",
        turns=schedule(
            list(labelled),
            arguments.runs,
            arguments.first_seed,
            unpaired_seeds=arguments.unpaired_seeds,
            control=arguments.control,
        ),
    )
    folder = make_new_folder(arguments.results, Path("runs") / COMMANDS, "race")
    (folder / "sides").mkdir()
    ledger.place(folder).touch()
    for letter, side in sides.items():
        write_json(side_file(folder, letter), asdict(side))
    return folder, planned


def sides_of(arguments: Namespace) -> tuple[dict[str, tuple[str, str]], dict[str, Revision]]:
    """Return label and command of each side by its letter, and the commits of --at, if given, by letter, too. Raises
    UsageError without a command where there are commits."""
    given = list(zip(arguments.labels, arguments.sides, strict=True))
    named = revisions(Path(arguments.repo), arguments.at) if arguments.at else []
    if named:
        if not given:
            raise UsageError("--at needs the command that is run at each commit; give it after --.")
        given = [(revision.name, " ".join(arguments.sides)) for revision in named]
    labelled: dict[str, tuple[str, str]] = {}
    shared = set.intersection(*({*command.split()} for _, command in given)) if len(given) > 1 else set()
    for letter, (label, command) in zip(letters(len(given)), given, strict=True):
        if label == command and len(label) > LONGEST_LABEL:
            own = " ".join(word for word in label.split() if word not in shared)
            label = f"{letter}: {own}"[:LONGEST_LABEL] if own else letter
        while label in [other for other, _ in labelled.values()]:
            label += " (again)"
        labelled[letter] = (label, command)
    return labelled, dict(zip(labelled, named, strict=False))


def parsed(words: Sequence[str]) -> Namespace:
    """Parse the words after `timedrun race command`; what a file of TOML gives comes before them."""
    arguments = command_parser().parse_args(words)
    arguments.labels = arguments.sides
    if len(arguments.sides) == 1 and arguments.sides[0].endswith(".toml"):
        options, sides = read_race(Path(arguments.sides[0]))
        arguments = command_parser().parse_args([*options, *words])
        arguments.sides, arguments.labels = [command for _, command in sides], [label for label, _ in sides]
    return arguments


def read_race(path: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the options, as words, and label and command of each side that a file of TOML holds. Raises UsageError for
    a file that is none, a name that is no option, and a side without a command."""
    try:
        values: Mapping[str, Any] = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}.") from None
    known = {action.dest for action in command_parser()._actions} - {"help", "json", "resume", "report"}
    if unknown := values.keys() - known:
        raise UsageError(f"{path}: no option {', '.join(sorted(unknown))}; a race has {', '.join(sorted(known))}.")
    words: list[str] = []
    sides: list[tuple[str, str]] = []
    for name, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if name != "sides":
                option = f"--{name.replace('_', '-')}"
                words += [option] * item if isinstance(item, bool) else [f"{option}={item}"]
            elif isinstance(item, str):
                sides.append((item, item))
            elif isinstance(item, dict) and isinstance(command := item.get("command"), str):
                sides.append((str(item.get("label", command)), command))
            else:
                raise UsageError(f"{path}: a side is {item!r}, neither a command line nor a table with `command`.")
    return words, sides
