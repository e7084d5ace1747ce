"""Sides of a race: each a config with its changes, a label for the table and a folder for its runs."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from judging.ground.errors import UsageError
from judging.ground.race_labels import letters
from judging.ground.result_files import read_json
from timedrun.racing.plan import Side
from timedrun.racing.race_file import ALONE, LEFT_OUT, Comparison, Tuned
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig, digest, dump
from timedrun.runner.config_choice import FILE, config_of, split, with_method


@dataclass(frozen=True, kw_only=True)
class ConfigSide:
    """A side of a race that is a config, whose name is that of its folder."""

    label: str
    config: RunConfig
    tuned: Tuned | None = None  # how its settings were tuned; None: not recorded

    @property
    def planned(self) -> Side:
        return Side(name=self.config.name, label=self.label, settings=dump(self.config), tuned=self.tuned)


def sides_of(
    benchmark: Benchmark, texts: Sequence[str], data: str | None, overrides: Sequence[str], *, verb: str = "run"
) -> list[ConfigSide]:
    """Return the sides that a command line names: `texts` as `config_of` reads them, each with the overrides for its
    letter (`--a.optimizer.peak-lr 0.1` for the first, `--27.optimizer.peak-lr` after z) after those for all sides. A
    changed config is labelled as typed, a file without its folders unless another has its name; a config that is named
    twice, as a control, gets the label "... (again)" and a folder of its own. `verb`: whose --help lists the settings.
    """
    of_sides = letters(len(texts))
    given = split_overrides(overrides, of_sides, texts)
    sides: list[ConfigSide] = []
    files = [split(benchmark, text, data)[0] for text in texts]
    for letter, text, path in zip(of_sides, texts, files, strict=True):
        prog = f"timedrun {verb} {benchmark.name} {shlex.quote(text)}"
        config = config_of(benchmark, text, data, [*given[""], *given[letter]], prog=prog)
        own = " ".join(word.removeprefix("--") for word in given[letter])
        typed = given[""] or own or re.search(r"[+-]", text) or text.endswith(FILE)
        file = Path(path)
        alone = file.suffix == FILE and len({other for other in files if Path(other).name == file.name}) == 1
        shown = file.name + text.removeprefix(path) if alone else text
        label = f"{shown} {own}".strip() if typed else config.name
        names = [config.name, *(f"{config.name}_{number}" for number in range(2, len(texts) + 1))]
        name = next(name for name in names if name not in [side.config.name for side in sides])
        while label in [side.label for side in sides]:
            label += " (again)"
        record = read_json(file).get("tuning") if file.suffix == FILE else None
        sides.append(
            ConfigSide(label=label, config=replace(config, name=name), tuned=Tuned.read(record, dump(config), file))
        )
    return sides


def split_overrides(words: Sequence[str], letters: Sequence[str], texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the overrides by the letter of their side, "" for those of all sides."""
    overrides: dict[str, list[str]] = {letter: [] for letter in ("", *letters)}
    letter = ""
    for word in words:
        if word.startswith("--"):
            match = re.fullmatch(r"--([a-z]|[0-9]+)\.(.+)", word, re.DOTALL)
            letter, word = (match[1], f"--{match[2]}") if match else ("", word)
            if letter not in overrides:
                named = ", ".join(f"{letter} ({text})" for letter, text in zip(letters, texts, strict=True))
                raise UsageError(f"--{letter}.{word[2:]}: there is no side {letter}; sides: {named}.")
        overrides[letter].append(word)
    return overrides


def ablation(given: Sequence[ConfigSide]) -> tuple[list[ConfigSide], list[Comparison]]:
    """Return the sides of an ablation and the rows of its table: all methods of the last of the `given` sides together,
    each left out of it in turn, and each added alone to the first (default: the same without methods). Equal settings
    are one side. Raises UsageError for more than two sides, or fewer than two methods."""
    if len(given) > 2:
        raise UsageError(f"--ablate takes a config, or a baseline and a config, not {len(given)}.")
    base, full = (given[0] if len(given) == 2 else None), given[-1]
    methods = full.config.methods
    if len(methods) < 2:
        raise UsageError(f"--ablate needs a config with 2 or more methods; {full.label} has {len(methods)}.")
    nothing = replace(full.config, name=f"{full.config.name}_bare", methods=())
    bare = base or ConfigSide(label=nothing.name, config=nothing)
    sides: dict[str, ConfigSide] = {}

    def folder(side: ConfigSide) -> str:
        return sides.setdefault(digest(replace(side.config, name="", notes="")), side).config.name

    first, last = folder(full), folder(bare)
    comparisons = [Comparison(row=f"all methods{LEFT_OUT}", slow=last, fast=first)]
    for method in methods:
        name = f"{first}-{method.name.replace(':', '.')}"
        config = replace(full.config, name=name, methods=tuple(m for m in methods if m != method))
        slow = folder(ConfigSide(label=config.name, config=config))
        comparisons.append(Comparison(row=f"{method.name}{LEFT_OUT}", slow=slow, fast=first))
    for method in methods:
        if method.name not in [own.name for own in bare.config.methods]:
            config = with_method(bare.config, method)
            config = replace(config, name=f"{last}+{method.name.replace(':', '.')}")
            fast = folder(ConfigSide(label=config.name, config=config))
            comparisons.append(Comparison(row=f"{method.name}{ALONE}", slow=last, fast=fast))
    return list(sides.values()), comparisons
