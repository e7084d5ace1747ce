"""`timedrun prepare`: run the benchmark's preparation of a dataset."""

import argparse
import inspect
import json
import re

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from mlevents.terminal_escape import printable
from timedrun.commands.chosen_config import settings_of
from timedrun.evidence.preflight.checks import data_problems

_IMAGE_OPTIONS = ("images",)
_TEXT_OPTIONS = ("text", "evaluation_text", "vocabulary")


def prepare(arguments: argparse.Namespace, rest: list[str]) -> ExitCode:
    benchmark, config = settings_of(arguments, rest)
    function = benchmark.hook("prepare", "prepare")
    if function is None:
        raise UsageError(f"{benchmark.name} has no prepare.prepare, so there is nothing to prepare.")
    options = {name: getattr(arguments, name) for name in (*_IMAGE_OPTIONS, *_TEXT_OPTIONS)}
    given = {name: value for name, value in options.items() if value}
    if unused := given.keys() - inspect.signature(function).parameters.keys():
        source = "images" if unused & set(_IMAGE_OPTIONS) else "text"
        named = ", ".join(f"--{name.replace('_', '-')}" for name in options if name in unused)
        raise UsageError(f"{benchmark.name} is not prepared from {source}; leave out {named}. Nothing was prepared.")
    prepared = function(config, arguments.data_folder, decode=arguments.decode, workers=arguments.workers, **given)
    if arguments.json:
        print(json.dumps(prepared, indent=2))
    else:
        print(f"{config.dataset}: ready")
        for key, value in prepared.items():
            print(printable(f"  {key}: {'; '.join(value) if isinstance(value, list) else value}"))
        places = {"--data": arguments.data, "--data-folder": arguments.data_folder}
        where = [word for option, value in places.items() if value for word in (option, value)]
        problems = " ".join(data_problems(benchmark, config, 1, arguments.data_folder))
        needed = " ".join(re.findall(r"set (--[\w.-]+ \d+)", problems)).split()  # settings that fit the data
        stdio.next_command("preflight", benchmark.name, arguments.config, *where, *rest, *needed)
    return ExitCode.OK
