"""Scripts of a package that install its source, check its data and repeat its runs."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from timedrun.evidence.submission.packaging.result_folder import ResultFolder
from timedrun.runner.storage.method_sources import OWN_METHODS
from timedrun.runner.storage.source_copies import SOURCE

IMPLEMENTATION = "timedrun"
NOT_FOR_RUNNING = ("dev", "report")  # extras of pyproject.toml that runs do not use
RUN_FILE: Final = "run.toml"
OF_THE_RUN: Final = ("name", "benchmark", "command", "directory", "to_end", "seed")
"""Settings of a command's config.json that are no options of `timedrun race command`."""


def scripts(result: ResultFolder, source: Path, environment: str) -> dict[str, str]:
    """Return the scripts by name that install the packaged `source`, check the data and repeat the runs of a system,
    and the files that they read.

    setup.sh installs the source with the extras whose requirements the runs had, and of a command all else that they
    had, as it may import it.
    """
    wanted = f'"{IMPLEMENTATION}"'
    if (project := source / "pyproject.toml").is_file():
        extras = _extras(project, environment)
        wanted = f'"$here/../{IMPLEMENTATION}{extras and f"[{extras}]"}"'
    install = [f'python -m pip install --constraint "$here/constraints.txt" {wanted}']
    if result.is_command:
        install.append('python -m pip install --requirement "$here/constraints.txt"')
        files = _of_command(result)
    else:
        files = _of_config(result)
    purpose = "One-time set-up: installs the source of these runs, and its requirements in the versions of the runs."
    return files | {"setup.sh": _script(purpose, *install), "constraints.txt": _constraints(environment)}


def run_file(config: Mapping[str, Any]) -> str:
    """Return the file of TOML from which `timedrun race` repeats the runs of a config.json."""
    options = {name: value for name, value in config.items() if name not in OF_THE_RUN}
    values = {"sides": [config["command"]], **options}  # strings of JSON are strings of TOML
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def _of_command(result: ResultFolder) -> dict[str, str]:
    datasets = _script("Nothing is checked here.", 'echo "the command finds its data by itself, see README.md"')
    run = _script(
        "Repeats the runs of this system's command.",
        *_paths(result),
        ': "${1:?usage: run_and_time.sh NEW_FOLDER [FOLDER, with the source and the data of the command]}"',
        'mkdir -p "$(dirname "$1")"',
        'out="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"',
        'work="${2:-}"',
        'if test -z "$work"; then',
        '    work="$(mktemp -d)"  # keep the package unchanged',
        f'    cp -R "$here/{SOURCE}/." "$work"',
        "fi",
        'cd "$work"',
        "# Exit status 3: the target was not reached.",
        f'python -m timedrun race "$here/{RUN_FILE}" --runs {len(result.paths)}'
        f" --first-seed {result.configs[0]['seed']} \\",
        '    --results "$out" || test $? -eq 3',
    )
    return {"init_datasets.sh": datasets, "run_and_time.sh": run, RUN_FILE: run_file(result.configs[0])}


def _of_config(result: ResultFolder) -> dict[str, str]:
    config = f'"$here/runs/{result.paths[0].side.name}/config.json"'
    datasets = _script(
        "One-time check or indexing of the dataset; the first argument is its folder, if it needs one.",
        *_paths(result),
        f'python -m timedrun prepare {result.package_name} {config} ${{1:+--data-folder "$1"}}',
    )
    threads = f" --threads {result.threads}" if result.threads else ""
    run = _script(
        "Repeats the runs of this system, each from the config of the run that it repeats.",
        *_paths(result),
        ': "${1:?usage: run_and_time.sh NEW_FOLDER [DATA_FOLDER]}"',
        'mkdir -p "$1"',
        'out="$(cd "$1" && pwd)"',
        'data="${2:+$(cd "$2" && pwd)}"',
        'cd "$here"  # runs record their command: relative paths name no folder of this machine',
        f"for number in {' '.join(str(run.number) for run in result.paths)}; do",
        "    # Exit status 3: the target was not reached; continue with the next run.",
        f'    python -m timedrun run {result.package_name} "runs/run_$number/config.json" --ranks {result.ranks}'
        f"{threads} \\",
        '        --results "$out/result_${number}.txt" ${data:+--data-folder "$data"} || test $? -eq 3',
        "done",
    )
    return {"init_datasets.sh": datasets, "run_and_time.sh": run}


def _paths(result: ResultFolder) -> list[str]:
    code = f"$here/../{IMPLEMENTATION}"
    own = [f'export PYTHONPATH="{code}/{OWN_METHODS}:$PYTHONPATH"'] if result.own_methods else []
    return [
        "export PYTHONDONTWRITEBYTECODE=1  # keep the package unchanged",
        f'export PYTHONPATH="{code}:{code}/logging${{PYTHONPATH:+:$PYTHONPATH}}"',
        *own,
    ]


def _constraints(environment: str) -> str:
    """Return constraints.txt for pip: the version of every distribution in environment.txt but timedrun's own. Local
    versions are cut off: `torch==2.13.0` is met by 2.13.0+cpu and 2.13.0+cu130, by whatever the machine needs."""
    pins = [line.partition("+")[0] for line in environment.splitlines() if re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)]
    kept = [pin for pin in pins if not pin.startswith(f"{IMPLEMENTATION}==")]
    return "\n".join(["# Versions that the packaged runs used, from environment.txt.", *kept, ""])


def _script(purpose: str, *lines: str) -> str:
    here = 'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'
    return "\n".join(["#!/usr/bin/env bash", f"# {purpose}", "set -euo pipefail", f"unset CDPATH; {here}", *lines, ""])


def _extras(project: Path, environment: str) -> str:
    """Return the extras of pyproject.toml whose requirements were all installed for the runs."""
    installed = {_normal(line.partition("==")[0]) for line in environment.splitlines() if "==" in line}
    optional = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("optional-dependencies", {})
    return ",".join(
        extra
        for extra, requirements in optional.items()
        if extra not in NOT_FOR_RUNNING and {_normal(requirement) for requirement in requirements} <= installed
    )


def _normal(requirement: str) -> str:
    """Return a requirement's name, normalised by PEP 503."""
    name = re.match(r"[A-Za-z0-9._-]*", requirement.strip())
    return re.sub(r"[-_.]+", "-", name.group() if name else "").lower()
