"""Options of `timedrun race command`, and of `run`, `sweep` and `tune command`, which a file of TOML may hold."""

import tomllib
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError, nearest
from timedrun.commands.options import above_zero, add_rounds, add_search, add_verdict, at_least
from timedrun.racing import race_file
from timedrun.racing.checkouts import WORKTREE
from timedrun.racing.command_tuning import PRESET, SPLIT
from timedrun.racing.race_file import COMMANDS, Tuned

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


def parsed(verb: str, words: Sequence[str]) -> Namespace:
    """Parse the words after `timedrun race command`, or another verb's: they count more than a file of TOML, and that
    more than a preset. Raises UsageError for an unknown preset."""
    arguments = command_parser(verb).parse_args(words)
    arguments.commands = [(command, command, None) for command in arguments.sides]
    if len(arguments.sides) == 1 and arguments.sides[0].endswith(".toml"):
        options, settings, sides = read_race(Path(given := arguments.sides[0]), verb)
        arguments = command_parser(verb).parse_args([*options, *words])
        vars(arguments).update(settings)
        arguments.commands = [
            (label, command, Tuned.read(record, {"command": command}, Path(given))) for label, command, record in sides
        ]
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
