"""`timedrun prepare`: the benchmark's own preparation of a dataset."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from timedrun.commands.run import settings_of
from timedrun.errors import ExitCode


def prepare(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Check or index the data of a config and print what was found."""
    arguments.only, arguments.without = [], []
    benchmark, config = settings_of(arguments, rest)
    folder = Path(arguments.data_folder) if arguments.data_folder else None
    found = benchmark.module("prepare").prepare(config, folder, decode=arguments.decode, workers=arguments.workers)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{config.dataset}: ready")
        for key, value in found.items():
            print(f"  {key}: {value}")
    return ExitCode.OK
