"""`timedrun prepare`: the benchmark's own preparation of a dataset."""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path

from mlevents.terminal_escape import printable
from timedrun.commands.run import settings_of
from timedrun.errors import ExitCode, UsageError

_OF_IMAGES = frozenset({"images", "validation_labels", "skip_broken"})


def prepare(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    """Make, check or index the data of a config and print what was found.

    Raises:
        UsageError: options that the benchmark has no use for.
    """
    arguments.only, arguments.without = [], []
    benchmark, config = settings_of(arguments, rest)
    folder = Path(arguments.data_folder) if arguments.data_folder else None
    function = benchmark.module("prepare").prepare
    options = {
        "images": [Path(path) for path in arguments.images],
        "validation_labels": Path(arguments.validation_labels) if arguments.validation_labels else None,
        "skip_broken": arguments.skip_broken,
        "text": [Path(path) for path in arguments.text],
        "evaluation_text": [Path(path) for path in arguments.evaluation_text],
        "vocabulary": Path(arguments.vocabulary) if arguments.vocabulary else None,
        "merges": Path(arguments.merges) if arguments.merges else None,
    }
    given = {name: value for name, value in options.items() if value}
    if strange := given.keys() - inspect.signature(function).parameters.keys():
        what = "images" if strange & _OF_IMAGES else "text"
        named = ", ".join(f"--{name.replace('_', '-')}" for name in options if name in strange)
        raise UsageError(f"{benchmark.name} is not prepared from {what}: it has no use for {named}.")
    found = function(config, folder, decode=arguments.decode, workers=arguments.workers, **given)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{config.dataset}: ready")
        for key, value in found.items():
            print(printable(f"  {key}: {'; '.join(value) if isinstance(value, list) else value}"))
    return ExitCode.OK
