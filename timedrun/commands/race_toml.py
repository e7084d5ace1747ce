"""A race in a file of TOML: options, sides, and settings that are too rare to be options."""

import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from judging.ground.errors import UsageError, nearest
from timedrun.racing import race_file
from timedrun.racing.command_tuning import PRESET
from timedrun.racing.race_file import COMMANDS, Tuned
from timedrun.runner.benchmark import find

PRESETS: Final = Path(race_file.__file__).with_name("presets.toml")
RARE: Final[dict[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(("metric", "start", "stop", "reported", "log", "seed_variable", "split", "repo"), str),
    **dict.fromkeys(("stop_at_target", "unpaired_seeds"), bool),
    **dict.fromkeys(("share", "baseline_ratios"), list),
    "checkpoint_minutes": (int, float),
    "first_seed": int,
}
"""Settings that are in a file and not among the options, with their types."""


class RaceToml(NamedTuple):
    """Content of a file."""

    words: list[str]
    """Options, as words of a command line."""
    settings: dict[str, Any]
    """Those of `RARE` and of presets."""
    sides: list[tuple[str, str, Any]]
    """Label, config or command line, and record of the tuning of each side."""


def presets() -> dict[str, dict[str, Any]]:
    """Return the options of each preset by its name."""
    return tomllib.loads(PRESETS.read_text())


def parsed(top: ArgumentParser, words: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Parse the command line of a race or a tuning, and return what is left, too: options count more than a file of
    TOML, and that more than a preset. Raises UsageError for an unknown preset, and what `read` raises."""
    at = words.index("--") if "--" in words else len(words)
    words, command = [*words[:at]], [*words[at + 1 :]]
    arguments, rest = top.parse_known_args(words)
    named = [word for word in (arguments.benchmark, *arguments.configs) if word and word != COMMANDS]
    file = Path(named[0]) if named and named[0].endswith(".toml") else None
    toml = RaceToml([], {}, [])
    if file:
        toml = read(file, arguments.parser)
        arguments, rest = top.parse_known_args([words[0], *toml.words, *words[1:]])
        arguments.benchmark, arguments.configs = toml.settings.pop("benchmark", COMMANDS), named[1:]
    for name, value in toml.settings.items():
        setattr(arguments, name, value)
    first = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    arguments.configs, rest = [*arguments.configs, *rest[:first], *command], rest[first:]
    if folder := getattr(arguments, "name", None):
        if arguments.results:
            raise UsageError("--name is the last part of the race's folder; give it alone, or --results FOLDER.")
        package = arguments.benchmark != COMMANDS and find(arguments.benchmark, working_directory=True).name
        arguments.results = f"runs/{package or COMMANDS}/{folder}"
    arguments.sides = [(side, side, None) for side in arguments.configs]
    if file and toml.sides and not arguments.configs:
        tuned = [Tuned.read(record, {"command": side}, file) for _, side, record in toml.sides]
        arguments.sides = [(label, side, of) for (label, side, _), of in zip(toml.sides, tuned, strict=True)]
        arguments.configs = [side for _, side, _ in toml.sides]
    if (name := arguments.preset) is not None:
        if name not in (known := presets()):
            raise UsageError(f"there is no preset {name!r}.{nearest(name, known)} Presets: {', '.join(known)}.")
        own = ("lower", "metric") if arguments.quality is not None else ()
        for option, value in known[name].items():
            if option not in own and getattr(arguments, option, None) is None:
                setattr(arguments, option, value)
    return arguments, rest


def read(path: Path, parser: ArgumentParser) -> RaceToml:
    """Return the content of a file for a verb with `parser`. Raises UsageError for a file that is none, a name that is
    no option, a value of another type, and a side without a command."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}.") from None
    options = {action.dest for action in parser._actions} - {"help", "json", "resume", "configs"}
    rare = {name: kind for name, kind in RARE.items() if name not in options}
    known = {*options, *rare, "sides"}
    if unknown := values.keys() - known - {*PRESET}:
        raise UsageError(f"{path}: no option {', '.join(sorted(unknown))}; a race has {', '.join(sorted(known))}.")
    settings = {name: values.pop(name) for name in ("benchmark", *rare, *PRESET) if name in values}
    for name, value in settings.items():
        if name in rare and (not isinstance(value, rare[name]) or (isinstance(value, bool) and rare[name] is not bool)):
            raise UsageError(f"{path}: {name} is {value!r}, which is of another type than it has.")
    sides: list[tuple[str, str, Any]] = []
    for side in values.pop("sides", []):
        if isinstance(side, str):
            sides.append((side, side, None))
        elif isinstance(side, dict) and isinstance(command := side.get("command"), str):
            sides.append((str(side.get("label", command)), command, side.get("tuning")))
        else:
            raise UsageError(f"{path}: a side is {side!r}, no config or command line, and no table with `command`.")
    words: list[str] = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            no = f"--no-{name}"
            words += [option] if value else [no] if no in parser._option_string_actions else []
        elif name == "ratios" and isinstance(value, list):
            words += [option, *map(str, value)]
        else:
            several = value if isinstance(value, list) and name != "budgets" else [value]
            words += [f"{option}={','.join(map(str, item)) if isinstance(item, list) else item}" for item in several]
    return RaceToml(words, settings, sides)
