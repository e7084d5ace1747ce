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

PRESETS: Final = Path(race_file.__file__).with_name("presets.toml")
RARE: Final = {
    **dict.fromkeys(("metric", "reported", "log", "seed_variable", "split", "repo"), str),
    **dict.fromkeys(("stop_at_target", "unpaired_seeds"), bool),
    **dict.fromkeys(("share", "baseline_ratios"), list),
}
"""Settings that no option has, with their types."""


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
    separated = words.index("--") if "--" in words else len(words)
    words, command = words[:separated], list(words[separated + 1 :])
    arguments, rest = top.parse_known_args(words)
    named, toml = [arguments.benchmark, *arguments.configs], None
    if (files := [Path(word) for word in named[:2] if word and word.endswith(".toml")]) and named[0] in (
        COMMANDS,
        str(files[0]),
    ):
        toml = read(files[0], arguments.parser)
        arguments, rest = top.parse_known_args([words[0], *toml.words, *words[1:]])
        arguments.benchmark, arguments.configs = toml.settings.pop("benchmark", COMMANDS), named[len(named[:2]) :]
    for name, value in (toml.settings if toml else {}).items():
        setattr(arguments, name, value)
    first = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    arguments.configs, rest = [*arguments.configs, *rest[:first], *command], rest[first:]
    arguments.sides = [(side, side, None) for side in arguments.configs]
    if toml and toml.sides and not arguments.configs:
        arguments.sides = [
            (label, side, Tuned.read(record, {"command": side}, files[0])) for label, side, record in toml.sides
        ]
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
    known = {*options, *RARE, *PRESET, "sides"}
    if unknown := values.keys() - known:
        raise UsageError(f"{path}: no option {', '.join(sorted(unknown))}; a race has {', '.join(sorted(known))}.")
    settings = {name: values.pop(name) for name in ("benchmark", *RARE, *PRESET) if name in values}
    for name, value in settings.items():
        if name in RARE and not isinstance(value, RARE[name]):
            raise UsageError(f"{path}: {name} is {value!r}, no {RARE[name].__name__}.")
    words: list[str] = []
    sides: list[tuple[str, str, Any]] = []
    for side in values.pop("sides", []):
        if isinstance(side, str):
            sides.append((side, side, None))
        elif isinstance(side, dict) and isinstance(command := side.get("command"), str):
            sides.append((str(side.get("label", command)), command, side.get("tuning")))
        else:
            raise UsageError(
                f"{path}: a side is {side!r}, neither a config or command line nor a table with `command`."
            )
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
