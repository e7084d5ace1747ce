"""That all ranks of a run were given the same: they are started one by one, on nodes that may differ."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from timedrun.config import RunConfig, dump
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import UsageError
from timedrun.provenance import system

MOST_TOLD: Final = 12
"""Differences that one message names."""


class ConfigMismatch(UsageError):
    """The ranks were not given the same; raised on all of them alike."""


def facts(settings: RunConfig, root: Path, launch: Mapping[str, object]) -> dict[str, object]:
    """What has to be the same on all ranks: every setting of the config, the versions and the source at `root` that
    compute with them, and the options of `launch`."""
    versions = {"Python": platform.python_version(), "torch": torch.__version__, "CUDA": torch.version.cuda}
    source = {f"source {name}": value for name, value in system.provenance(root).items()}
    return {"seed": settings.seed, **_flat("", dump(settings)), **versions, **source, **launch}


def require(ranks: ProcessGroup, given: Mapping[str, object], prevented: str = "the run was not started") -> None:
    """Compare what each rank was `given`; all ranks call it together, and end alike.

    Raises:
        Disagreement: it differs; each difference is named with the ranks that have each value.
    """
    # As text: it is compared and shown, and a rank of another version must not make this fail in another way.
    shown = {name: json.dumps(value, sort_keys=True, default=str) for name, value in given.items()}
    everybody = ranks.all_gather(shown)
    if all(one == everybody[0] for one in everybody):
        return
    names = list(dict.fromkeys(name for one in everybody for name in one))
    lines = []
    for name in names:
        by_value: dict[str, list[int]] = {}
        for rank, one in enumerate(everybody):
            by_value.setdefault(one.get(name, "nothing"), []).append(rank)
        if len(by_value) > 1:
            values = ", ".join(f"{value} on {in_words(who)}" for value, who in by_value.items())
            lines.append(f"  - {name}: {values}")
    more = f"\n  - and {len(lines) - MOST_TOLD} more" if len(lines) > MOST_TOLD else ""
    told = "\n".join(lines[:MOST_TOLD])
    raise ConfigMismatch(f"the ranks were not given the same; {prevented}:\n{told}{more}\nGive all ranks the same.")


def _flat(name: str, value: Any) -> dict[str, object]:
    if isinstance(value, dict) and value:
        return {key: leaf for part, item in value.items() for key, leaf in _flat(f"{name}.{part}", item).items()}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        parts = enumerate(value)
        return {key: leaf for part, item in parts for key, leaf in _flat(f"{name}[{part}]", item).items()}
    return {name.removeprefix("."): value}


def in_words(ranks: list[int]) -> str:
    """[0, 1, 2, 5] as "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
