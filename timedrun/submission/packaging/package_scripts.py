"""Scripts of a package that install its source, check its data and repeat its runs."""

import re
import tomllib
from pathlib import Path

from timedrun.storage.method_sources import OWN_METHODS
from timedrun.submission.packaging import command_files
from timedrun.submission.packaging.result_folder import ResultFolder

IMPLEMENTATION = "timedrun"
NOT_FOR_RUNNING = ("dev", "report")
"""Extras of pyproject.toml that runs do not use."""


def setup_script(source: Path, environment: str, *, all_of_it: bool) -> str:
    """Return setup.sh, which installs the packaged source with the extras whose requirements the runs had; `all_of_it`:
    and all else that they had, as a command may import it."""
    project, wanted = source / "pyproject.toml", f'"{IMPLEMENTATION}"'
    if project.is_file():
        extras = _extras(project, environment)
        wanted = f'"$here/../{IMPLEMENTATION}{extras and f"[{extras}]"}"'
    return _script(
        "One-time set-up: installs the source of these runs, and its requirements in the versions of the runs.",
        f'python -m pip install --constraint "$here/constraints.txt" {wanted}',
        *(['python -m pip install --requirement "$here/constraints.txt"'] if all_of_it else []),
    )


def constraints(environment: str) -> str:
    """Return constraints.txt for pip: the version of every distribution in environment.txt but timedrun's own. Local
    versions are cut off: `torch==2.13.0` is met by 2.13.0+cpu and 2.13.0+cu130, by whatever the machine needs."""
    pins = [line.partition("+")[0] for line in environment.splitlines() if re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)]
    kept = [pin for pin in pins if not pin.startswith(f"{IMPLEMENTATION}==")]
    return "\n".join(["# Versions that the packaged runs used, from environment.txt.", *kept, ""])


def datasets_script(result: ResultFolder) -> str:
    """Return init_datasets.sh, which checks or indexes the dataset."""
    if result.is_command:
        return _script("Nothing is checked here.", 'echo "the command finds its data by itself, see README.md"')
    config = f'"$here/runs/{result.paths[0].side.name}/config.json"'
    return _script(
        "One-time check or indexing of the dataset; the first argument is its folder, if it needs one.",
        *_path(result),
        f'python -m timedrun prepare {result.package_name} {config} ${{1:+--data-folder "$1"}}',
    )


def run_script(result: ResultFolder) -> str:
    """Return run_and_time.sh, which repeats every run from its own config, in order."""
    numbers = " ".join(str(run.number) for run in result.paths)
    threads = f" --threads {result.threads}" if result.threads else ""
    if result.is_command:
        lines = command_files.run_lines(len(result.paths), result.configs[0]["seed"])
        return _script("Repeats the runs of this system's command.", *_path(result), *lines)
    return _script(
        "Repeats the runs of this system, each from the config of the run that it repeats.",
        *_path(result),
        ': "${1:?usage: run_and_time.sh NEW_FOLDER [DATA_FOLDER]}"',
        'mkdir -p "$1"',
        'out="$(cd "$1" && pwd)"',
        'data="${2:+$(cd "$2" && pwd)}"',
        'cd "$here"  # runs record their command: relative paths name no folder of this machine',
        f"for number in {numbers}; do",
        "    # Exit status 3: the target was not reached; continue with the next run.",
        f'    python -m timedrun run {result.package_name} "runs/run_$number/config.json" --ranks {result.ranks}'
        f"{threads} \\",
        '        --results "$out" --number "$number" ${data:+--data-folder "$data"} || test $? -eq 3',
        "done",
    )


_PATH = (
    "export PYTHONDONTWRITEBYTECODE=1  # keep the package unchanged\n"
    f'export PYTHONPATH="$here/../{IMPLEMENTATION}:$here/../{IMPLEMENTATION}/logging${{PYTHONPATH:+:$PYTHONPATH}}"'
)


def _path(result: ResultFolder) -> list[str]:
    own = f'export PYTHONPATH="$here/../{IMPLEMENTATION}/{OWN_METHODS}:$PYTHONPATH"'
    return [_PATH, own] if result.own_methods else [_PATH]


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
