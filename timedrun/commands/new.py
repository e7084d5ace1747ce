"""`timedrun new`: write a benchmark to start from, a copy of `timedrun/commands/benchmark_template`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import keyword
from pathlib import Path
from typing import Final

from judging.ground.errors import ExitCode, UsageError
from mlevents.rounds import rulesets_of
from timedrun.storage import method_cards
from timedrun.storage.benchmark_folders import nearby

TEMPLATE: Final = Path(__file__).resolve().with_name("benchmark_template")


def new(arguments: argparse.Namespace) -> ExitCode:
    """Write the package `arguments.name` and print the commands to try it. Raise UsageError if it cannot be imported
    under this name, the name is that of a known benchmark, or its folder exists."""
    name, folder = arguments.name, Path(arguments.out) / arguments.name
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise UsageError(f"'{name}' cannot name a Python package; use letters, digits and _, such as my_benchmark.")
    if folder.exists():
        raise UsageError(f"{folder} already exists and was not overwritten; choose another name or --out folder.")
    if name in method_cards.WORDS:
        raise UsageError(f"'{name}' is a word of `timedrun list` and `timedrun show`; choose another name.")
    for path in nearby():
        if path != name and path.rpartition(".")[2] == name:
            raise UsageError(f"'{name}' is the short name of the benchmark {path}; choose another name.")
    if known := rulesets_of(name):
        raise UsageError(f"ruleset {known[-1]} has rules for {name}; choose another name.")
    if importlib.util.find_spec(name) is not None:
        raise UsageError(
            f"Python already has a module '{name}', which would hide the new package; choose another name."
        )
    folder.mkdir(parents=True)
    files = sorted(TEMPLATE.glob("*.py"))
    for file in files:
        text = file.read_text(encoding="utf-8").replace(TEMPLATE.name, name)
        (folder / file.name).write_text(text, encoding="utf-8")
    verbs = (f"preflight {name} baseline", f"run {name} baseline", f"race {name} baseline methods --runs 3")
    commands = [f"timedrun {verb}" for verb in verbs]
    if arguments.json:
        print(json.dumps({"folder": str(folder), "files": [file.name for file in files], "try": commands}, indent=2))
        return ExitCode.OK
    where = "" if folder.parent.resolve() == Path.cwd() else f", in {folder.parent}"
    print(f"Wrote {folder}: {', '.join(file.name for file in files)}")
    print(f"next{where}:\n" + "\n".join(f"    {command}" for command in commands))
    return ExitCode.OK
