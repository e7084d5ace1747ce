"""Files next to a run's log: its config, and the system, environment and source that it runs on."""

from __future__ import annotations

import torch

from judging.ground.result_files import ResultPaths, write_json
from timedrun import config
from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.provenance import system
from timedrun.run import origin
from timedrun.storage.benchmark_folders import ROOT


def write(settings: RunConfig, paths: ResultPaths, ranks: ProcessGroup, platform: str, command: str) -> None:
    """Write the files of a run that starts."""
    paths.side.mkdir(exist_ok=True)
    write_json(paths.config, config.dump(settings))
    write_json(paths.system, describe(settings, ranks, platform))
    paths.environment.write_text(system.environment())
    source = origin.at_start(ROOT, ranks.world_size, ranks.device.type)
    write_json(paths.provenance, source | {"command": command, "data": None, "final_state": None})


def describe(settings: RunConfig, ranks: ProcessGroup, platform: str) -> system.Description:
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


def platform_name(settings: RunConfig, ranks: ProcessGroup) -> str:
    """Return the config's system id, or by default one of the number and kind of devices and the config's name."""
    if settings.submission.platform:
        return settings.submission.platform
    if ranks.device.type == "cuda":
        kind = torch.cuda.get_device_name(ranks.device).replace("NVIDIA", "").strip().replace(" ", "_")
    else:
        kind = "CPU"
    return f"{ranks.world_size}x{kind}-{settings.name}"
