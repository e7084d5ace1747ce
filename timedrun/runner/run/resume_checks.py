"""Conditions for resuming an interrupted run: nothing that may change the weights has changed since its start."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from judging.ground.config_values import differing, flatten
from judging.ground.errors import TimedrunError
from judging.ground.result_files import ResultPaths, read_json
from mlevents import keys
from mlevents.record import read
from timedrun.runner import config
from timedrun.runner.config import RunConfig
from timedrun.runner.process.blocks import Outcome

ORIGIN: Final = {
    "ranks": "the number of ranks",
    "threads": "the number of CPU threads of a rank (--threads or OMP_NUM_THREADS)",
    "commit": "timedrun's commit",
    "dirty": "the mark that its source differs from the commit",
    "difference": "the digest of its source's differences from the commit",
    "image_digest": "the container image (TIMEDRUN_IMAGE_DIGEST)",
}
"""Entries of provenance.json that must be equal, with their names in messages."""

SYSTEM: Final = {
    "number_of_nodes": "the number of nodes",
    "host_processor_model_name": "the processor",
    "accelerator_model_name": "the accelerator",
    "framework": "the framework",
}
"""The same of system.json. Memory, disks, network and the number of processors do not change the result."""


def require_resumable(
    settings: RunConfig, paths: ResultPaths, *, origin: Mapping[str, Any], system: Mapping[str, Any]
) -> None:
    """Raise TimedrunError unless the run at `paths` was interrupted and `settings`, the numbers of ranks, nodes and
    threads, the models of processor and accelerator, the source, the image and the versions of software are those of
    its start. Its checkpoints are not examined; nothing is changed.

    Args:
        origin, system: of this process (`origin.at_start`, `system.describe`).
    """
    over = ended(settings, paths)
    if reasons := over or changed(settings, paths, origin=origin, system=system):
        advice = "" if over else " resume it as it was started, or"
        raise TimedrunError(
            f"{paths.log}: the run cannot be resumed: {'; '.join(reasons)}. Nothing was changed;{advice} start another"
            " run under another number."
        )


def ended(settings: RunConfig, paths: ResultPaths) -> list[str]:
    """Return why the run may not continue: the rules forbid it, or it has ended."""
    try:
        log = read(paths.log)
    except FileNotFoundError:
        return ["its log does not exist"]
    if keys.CLOSED in (settings.submission.division, log.division):
        return ["a run of the closed division may not be resumed; start it again"]
    if log.status == keys.SUCCESS:
        return ["it reached its target"]
    reason = log.stopped.metadata.get("reason") if log.stopped else None
    if reason in (Outcome.NOT_REACHED.value, Outcome.BUDGET_SPENT.value):
        return [f"it ended by itself ({reason})"]
    return [] if log.started else ["its clock had not started"]


def changed(
    settings: RunConfig, paths: ResultPaths, *, origin: Mapping[str, Any], system: Mapping[str, Any]
) -> list[str]:
    """Return the differences from the start of the run, each of which may change the last bits of a weight."""
    log, origin_was, system_was = read(paths.log), _recorded(paths.provenance), _recorded(paths.system)
    # The log has precedence over config.json: it is the result.
    logged = {"seed": log.seed, "submission.division": log.division}
    rows = differing(flatten(_recorded(paths.config)) | logged, config.dump(settings), leave_out=())
    digest_was, digest = log.value(keys.CONFIG_DIGEST), config.digest(settings)
    if digest_was != digest and not {name for name, *_ in rows} - {"seed"}:  # config.json was changed after the run
        rows.append(("the digest of the settings in the log", digest_was, digest))
    was = {"the system": log.text(keys.SUBMISSION_PLATFORM)} | _named(origin_was, system_was)
    now = {"the system": system["system_name"]} | _named(origin, system)
    rows += differing(was, now, leave_out=())
    return [f"{name} was {before} and is now {here}" for name, before, here in rows]


def _named(origin: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, object]:
    """Return the entries of `origin` and `system` that must be equal, by their names in messages."""
    recorded = system.get("other_software_stack")
    software = recorded if isinstance(recorded, dict) else {}
    return {
        **{name: origin.get(key, "not recorded") for key, name in ORIGIN.items()},
        **{name: system.get(key, "not recorded") for key, name in SYSTEM.items()},
        **{f"the version of {name}": version for name, version in software.items()},
    }


def _recorded(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
        if not isinstance(values, dict):
            raise TimedrunError(f"{path}: not a JSON object.")
    except TimedrunError as error:
        raise TimedrunError(
            f"the run cannot be resumed, since the settings of its start are unknown: {error} Nothing was changed;"
            " restore the file as the run wrote it, or start it again under another number."
        ) from None
    return values
