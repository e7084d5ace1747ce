"""What a run came from: its source, how it was started, its container image and a digest of its data."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from timedrun.benchmark import Benchmark
from timedrun.config import RunConfig
from timedrun.errors import TimedrunError, UsageError
from timedrun.provenance import system
from timedrun.storage.result_files import read_json, write_json

IMAGE_DIGEST = "TIMEDRUN_IMAGE_DIGEST"
"""The environment variable by which a container is told what image it was made from; nothing inside it can know."""

DigestFunction = Callable[[RunConfig, Path | None], dict[str, str]]


def image_digest() -> str | None:
    """The digest of the container image, None where TIMEDRUN_IMAGE_DIGEST is not set. A registry's name before it is
    left out: it may be that of an internal host.

    Raises:
        UsageError: the variable holds no digest.
    """
    given = os.environ.get(IMAGE_DIGEST, "").strip()
    if not given:
        return None
    found = re.search(r"(?:^|@)(sha256:[0-9a-f]{64})$", given)
    if not found:
        raise UsageError(
            f"{IMAGE_DIGEST} is {given[:100]!r}, not a digest such as sha256:<64 hexadecimal digits>; the run was not"
            " started. Set it right (docker image inspect --format '{{index .RepoDigests 0}}' IMAGE) or unset it."
        )
    return found[1]


def at_start(root: Path, ranks: int, device: str) -> dict[str, Any]:
    """What is known of a run of this process's kind before it trains: the source at `root`, the number of ranks, the
    threads that each computes with, and the container image.

    Raises:
        UsageError: TIMEDRUN_IMAGE_DIGEST holds no digest.
    """
    started = {"ranks": ranks, "threads": computing_threads(device), "image_digest": image_digest()}
    return {**system.provenance(root), **started}


def computing_threads(device: str) -> int | None:
    """The threads of this process that compute on `device`, on whose number the last bits depend; None on a GPU."""
    return torch.get_num_threads() if device == "cpu" else None


def data_identity(benchmark: Benchmark, settings: RunConfig, folder: Path | None) -> dict[str, str | None]:
    """What `settings` trains and evaluates on: its name, a SHA-256, and what that is of.

    It comes from `data_digest(config, folder)` in the benchmark's data module, which may read the data: MLPerf's rules
    forbid that before run_start, so this is asked after run_stop.
    """
    function: DigestFunction | None = getattr(benchmark.module("datasets"), "data_digest", None)
    if function is None:
        return {"name": settings.dataset, "sha256": None, "of": "unknown: the benchmark has no data_digest"}
    try:
        return {"name": settings.dataset, **function(settings, folder)}
    except (TimedrunError, OSError) as error:  # its words may name a folder of this machine
        return {"name": settings.dataset, "sha256": None, "of": f"unknown: {type(error).__name__}"}


def add_data(
    path: Path, benchmark: Benchmark, settings: RunConfig, folder: Path | None, final_state: str | None
) -> None:
    """Add the data's identity to the provenance in `path`, and the SHA-256 of the state that training ended in (None
    where it did not end by itself). A run that is over is not failed by this: where it cannot be written, that is said
    on standard error, and the log is what it was."""
    try:
        values: dict[str, Any] = read_json(path)
        state = final_state and {"sha256": final_state, "of": "model, optimizer and methods of rank 0"}
        write_json(path, values | {"data": data_identity(benchmark, settings, folder), "final_state": state})
    except (TimedrunError, OSError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        print(f"{path}: the digest of the data could not be added ({reason}).", file=sys.stderr)
