"""Files next to a run's log: its config, the system and environment that it runs on, and its origin, which is source,
ranks and threads, container image and a digest of its data."""

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from judging.ground.config_values import flatten
from judging.ground.errors import UsageError
from judging.ground.result_files import ResultPaths, read_json, write_json
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import RunConfig, dump
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.provenance import source, system
from timedrun.runner.provenance.hardware import Description, default_threads, system_name
from timedrun.runner.storage.benchmark_folders import ROOT
from timedrun.runner.storage.method_sources import own_methods

IMAGE_DIGEST = "TIMEDRUN_IMAGE_DIGEST"
"""Environment variable with the digest of the container's image, which a process inside the container cannot know."""


def image_digest() -> str | None:
    """Return the digest of the container image, None if TIMEDRUN_IMAGE_DIGEST is not set; raise UsageError if it is not
    a digest. A registry's name before it is dropped: it may be that of an internal host."""
    given = os.environ.get(IMAGE_DIGEST, "").strip()
    if not given:
        return None
    match = re.search(r"(?:^|@)(sha256:[0-9a-f]{64})$", given)
    if not match:
        raise UsageError(
            f"{IMAGE_DIGEST} is {given[:100]!r}, not a digest such as sha256:<64 hexadecimal digits>; the run was not"
            " started. Correct it (docker image inspect --format '{{index .RepoDigests 0}}' IMAGE) or unset it."
        )
    return match[1]


def at_start(code: source.SourceState, ranks: int, device: str) -> dict[str, Any]:
    """Return the origin that is known before training: the state of the source, ranks, compute threads and image."""
    started = {"ranks": ranks, "threads": computing_threads(device), "image_digest": image_digest()}
    return {**code, **started}


def values_to_compare(settings: RunConfig, root: Path, launch: Mapping[str, object]) -> dict[str, object]:
    """Return the values that all ranks must share: every setting of the config, the versions, the source at `root`, and
    the options in `launch`."""
    versions = {"Python": platform.python_version(), "torch": torch.__version__, "CUDA": torch.version.cuda}
    code = {f"source {name}": value for name, value in source.provenance(root).items()}
    return {"seed": settings.seed, **flatten(dump(settings)), **versions, **code, **launch}


def computing_threads(device: str) -> int | None:
    """Return the number of threads that compute on `device`, which affects the last bits; None on a GPU."""
    return torch.get_num_threads() if device == "cpu" else None


def set_threads(threads: int) -> None:
    """Have torch compute with `threads` threads; 0: with the default."""
    if threads or default_threads() < torch.get_num_threads():
        torch.set_num_threads(threads or default_threads())


def data_identity(benchmark: Benchmark, settings: RunConfig, folder: Path | None) -> dict[str, str | None]:
    """Return the name of the data of `settings`, their SHA-256, and a description of the hashed content.

    The digest is that of `data_digest(config, folder)` in the benchmark's data module. It may read the data, which
    MLPerf's rules forbid before run_start: call it after run_stop.
    """
    function = benchmark.hook("datasets", "data_digest")
    if function is None:
        return {"name": settings.dataset, "sha256": None, "of": "unknown: the benchmark has no data_digest"}
    try:
        return {"name": settings.dataset, **function(settings, folder)}
    except Exception as error:  # of a benchmark's own code; its message may contain a path of this machine
        return {"name": settings.dataset, "sha256": None, "of": f"unknown: {type(error).__name__}"}


def add_data(
    path: Path,
    benchmark: Benchmark,
    settings: RunConfig,
    folder: Path | None,
    final_state: str | None,
    kept: dict[str, str] | None = None,
) -> None:
    """Add the data's identity, the SHA-256 of the final state (None if training was cut short) and those of the files
    of the kept model to the provenance in `path`. A failure is reported on standard error and does not fail the
    finished run."""
    try:
        values: dict[str, Any] = read_json(path)
        state = final_state and {"sha256": final_state, "of": "model, optimizer and methods of rank 0"}
        model = {"model": kept} if kept else {}
        write_json(path, values | {"data": data_identity(benchmark, settings, folder), "final_state": state} | model)
    except Exception as error:
        reason = str(error) or type(error).__name__
        print(f"{path}: the digest of the data could not be added ({reason}).", file=sys.stderr)


def write(
    settings: RunConfig,
    paths: ResultPaths,
    ranks: ProcessGroup,
    platform: str,
    command: str,
    code: source.SourceState | None = None,
) -> None:
    """Write the files of a run that starts, with the state of the source, `code` if it is known."""
    paths.side.mkdir(exist_ok=True)
    write_json(paths.config, dump(settings))
    write_json(paths.system, describe(settings, ranks, platform))
    paths.environment.write_text(system.environment())
    started = at_start(code or source.provenance(ROOT), ranks.world_size, ranks.device.type)
    started["methods"] = own_methods(dump(settings))
    write_json(paths.provenance, started | {"command": command, "data": None, "final_state": None})


def describe(settings: RunConfig, ranks: ProcessGroup, platform: str) -> Description:
    """Describe the system of `ranks` under the name `platform`."""
    submission = settings.submission
    return system.describe(
        submission.organization,
        platform,
        division=submission.division,
        status=submission.status,
        ranks=ranks.world_size,
        device=ranks.device.type,
    )


def of_measurements(device: str) -> dict[str, Any]:
    """Return the state of the source and the description of the system on which this process has measured."""
    return {"source": source.provenance(ROOT), "system": system.describe("", "", ranks=1, device=device)}


def platform_name(settings: RunConfig, ranks: ProcessGroup) -> str:
    """Return the config's system id, or the default name of the system of its ranks."""
    kind = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else ranks.device.type.upper()
    return settings.submission.platform or system_name(settings.name, ranks.world_size, kind)
