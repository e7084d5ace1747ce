"""Whether an interrupted run may be taken up again: only as what it was, or its weights would be another run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mlevents import keys
from mlevents.record import read
from timedrun import config
from timedrun.config import RunConfig, flatten
from timedrun.errors import TimedrunError
from timedrun.outcome import Outcome
from timedrun.results import ResultPaths, read_json


def require_resumable(
    settings: RunConfig, paths: ResultPaths, *, world: int, platform: str, source: dict[str, Any]
) -> None:
    """Nothing, where the run at `paths` was interrupted and `settings`, the number of ranks, the machine and the
    software are what it was started with. Nothing is changed. Its checkpoints are not looked at.

    source: what `system.provenance` says of the code that would go on with it.

    Raises:
        TimedrunError: it cannot be resumed; the message says why.
    """
    reasons = over(settings, paths) or changed(settings, paths, world=world, platform=platform, source=source)
    if reasons:
        raise TimedrunError(
            f"{paths.log}: the run cannot be resumed: {'; '.join(reasons)}. Nothing was changed; resume it as it was"
            " started, or run it again under another number."
        )


def over(settings: RunConfig, paths: ResultPaths) -> list[str]:
    """Why there is nothing to finish: the rules forbid it, or the run has ended."""
    if settings.submission.division == keys.CLOSED:
        return ["a run of the closed division is not interrupted and resumed; it has to be run again"]
    try:
        log = read(paths.log)
    except FileNotFoundError:
        return ["its log does not exist"]
    if log.status == keys.SUCCESS:
        return ["it reached its target"]
    reason = log.stopped.metadata.get("reason") if log.stopped else None
    if reason in (Outcome.NOT_REACHED.value, Outcome.BUDGET_SPENT.value):
        return [f"it ended by itself ({reason})"]
    return [] if log.started else ["its clock had not started"]


def changed(settings: RunConfig, paths: ResultPaths, *, world: int, platform: str, source: dict[str, Any]) -> list[str]:
    """What is not as it was when the run was started. Every one of these may change the last bits of a weight."""
    found = []
    was, now = flatten(_beside(paths.config)), flatten(config.dump(settings))
    settings_changed = [name for name in was | now if was.get(name, "-") != now.get(name, "-")]
    found += [f"{name} was {was.get(name, '-')} and is {now.get(name, '-')}" for name in settings_changed[:5]]
    if len(settings_changed) > 5:
        found.append(f"{len(settings_changed) - 5} other settings differ")
    origin = _beside(paths.provenance)
    framework = str(_beside(paths.system).get("framework"))
    facts = {
        "the number of ranks": (origin.get("ranks"), world),
        "timedrun's commit": (origin.get("commit"), source.get("commit")),
        "that its source differs from the commit": (origin.get("dirty"), source.get("dirty")),
        "the framework": (framework, f"PyTorch {torch.__version__}"),
        "the system": (read(paths.log).platform, platform),
    }
    return found + [f"{what} was {before} and is {here}" for what, (before, here) in facts.items() if before != here]


def _beside(path: Path) -> dict[str, Any]:
    """What the interrupted run wrote beside its log.

    Raises:
        TimedrunError: it cannot be read.
    """
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise TimedrunError(f"{path}: no JSON object.")
    except TimedrunError as error:
        raise TimedrunError(
            f"the run cannot be resumed, since what it was started with is not known: {error} Nothing was changed; put"
            " the file back as the run wrote it, or run it again under another number."
        ) from None
    return values
