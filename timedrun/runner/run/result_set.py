"""The set that a results folder holds: runs of one config, each with a seed of its own."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from judging.ground.config_values import differing, digest_of
from judging.ground.errors import TimedrunError, UsageError
from judging.ground.result_files import CONFIG, ResultPaths, next_number, read_json
from mlevents.event import listed
from mlevents.record import read
from mlevents.rounds import BenchmarkRules
from mlevents.rounds.own_rules import as_recorded
from timedrun.runner.config import RunConfig, digest, dump
from timedrun.runner.process.launch_env import MAX_RESTARTS

MOST_NAMED: Final = 6  # settings that differ, in a message


def recorded_configs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the config.json of each run_N in `folder`, in no order, as far as it can be read."""
    configs: dict[str, Mapping[str, Any]] = {}
    for path in folder.glob(f"run_*/{CONFIG}"):
        try:
            values = read_json(path)
        except TimedrunError:
            continue
        if isinstance(values, dict):
            configs[path.parent.name] = values
    return configs


def next_seed(config: RunConfig, folder: Path) -> int:
    """Return the config's own seed if no run in `folder` has it, else the lowest from 1 up that none has."""
    used = {values.get("seed") for values in recorded_configs(folder).values()}
    return next(seed for seed in itertools.chain([config.seed], itertools.count(1)) if seed not in used)


class NumberedRun(NamedTuple):
    """A run with its number and seed."""

    paths: ResultPaths
    config: RunConfig
    resume: bool


def numbered(config: RunConfig, folder: Path, number: int | None, *, resume: bool, seed_given: bool) -> NumberedRun:
    """Return a run in `folder`, with the seed of the run that is resumed, or the next free one unless it is given.
    number: None for the next free one, or the last to resume. Raises UsageError for a restart by torchrun, whose ranks
    do not know the number of the run before it."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        raise UsageError(
            "torchrun has restarted this run, whose number its ranks do not know; nothing was written. Resume it with"
            f" --resume, or start it by `timedrun run --ranks N` with {MAX_RESTARTS}, which restarts and resumes."
        )
    if number is None:
        number = next_number(folder) - resume
    if not seed_given:
        recorded = recorded_configs(folder).get(f"run_{number}", {})
        seed = recorded.get("seed") if resume else next_seed(config, folder)
        config = replace(config, seed=seed if type(seed) is int else config.seed)
    return NumberedRun(ResultPaths(folder, number), config, resume)


def repeated_seed(config: RunConfig, folder: Path, *, but: str = "") -> str:
    """Return which run in `folder`, `but` for one, has the seed of `config` and what to do, or "" if none has."""
    runs = recorded_configs(folder).items()
    taken = sorted(name for name, values in runs if values.get("seed") == config.seed and name != but)
    if not taken:
        return ""
    return (
        f"{folder}: {taken[0]} already has seed {config.seed}, and each run of a set needs a seed of its own. Take"
        f" the next free one (--seed {next_seed(config, folder)}), or choose another --results folder."
    )


def other_rules(rules: BenchmarkRules | None, folder: Path) -> str:
    """Return how the rules that the first log in `folder` records differ from a benchmark's own `rules`, or ""."""
    logs = sorted(folder.glob("result_*.txt"))
    recorded = read(logs[0]).own_rules if rules and logs else None
    if rules is None or recorded is None or as_recorded(recorded) == as_recorded(rules):
        return ""
    rows = differing(as_recorded(recorded), as_recorded(rules))
    named = ", ".join(f"{key} {then} there and {now} here" for key, then, now in rows)
    return f"{folder} holds runs by other rules; they differ in {named}. Choose another --results folder."


def other_config(config: RunConfig, folder: Path) -> str:
    """Return which run in `folder` has another config and how it differs, or "" if none has."""
    recorded = sorted(recorded_configs(folder).items())
    own, mine = (digest(config), dump(config)) if recorded else ("", {})
    for name, values in recorded:
        if (theirs := digest_of(values)) != own:
            rows = [(key, *pair) for key, *pair in differing(values, mine) if key != "seed"]
            named = listed([f"{key} {then} there and {now} here" for key, then, now in rows], MOST_NAMED)
            return (
                f"{folder} holds runs of another config, and the runs of a folder are one set: {name} has the digest"
                f" {theirs[:16]}, this config {own[:16]}; they differ in {named or 'name or notes'}. Choose"
                " another --results folder; without it, the folder is named after the config (--name)."
            )
    return ""
