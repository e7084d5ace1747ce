"""Files of a package for runs of a command: its source, and the settings from which timedrun runs it again."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.record import RunRecord
from timedrun.storage import source_copies
from timedrun.submission.packaging.safe_files import PackageError, content

RUN_FILE: Final = "run.toml"
OF_THE_RUN: Final = ("name", "benchmark", "command", "directory", "to_end", "seed")
"""Settings of config.json that are no options of `timedrun run command`."""


def recorded_source(
    records: Sequence[RunRecord], paths: Sequence[ResultPaths], configs: Sequence[Mapping[str, Any]]
) -> dict[str, bytes]:
    """Return the source of the command of a set. Raise PackageError unless each run has the copies that it recorded,
    and all have the same."""
    sources = []
    for record, run, config in zip(records, paths, configs, strict=True):
        if type(config.get("seed")) is not int or config.get("command") != record.value(keys.COMMAND):
            raise PackageError(f"{run.config}: not the settings of the command in {run.log.name}; restore it.")
        sources.append(source_copies.copies_in(run.side, content))
        if record.value(keys.SOURCE_SHA256) != source_copies.digest(sources[-1]):
            raise PackageError(
                f"{run.side / source_copies.SOURCE}: not what the run recorded as the source of its command, so nothing"
                " shows what ran. Restore it, or run again."
            )
        if sources[-1] != sources[0]:
            raise PackageError(f"{run.log}: the source of its command is not that of {paths[0].log}; run again.")
    return sources[0]


def run_file(config: Mapping[str, Any]) -> str:
    """Return the file of TOML from which `timedrun run command` repeats the runs of a config.json."""
    options = {name: value for name, value in config.items() if name not in OF_THE_RUN}
    values = {"sides": [config["command"]], **options}  # strings of JSON are strings of TOML
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())


def run_lines(runs: int, first_seed: int) -> list[str]:
    """Return the lines of run_and_time.sh that run a command `runs` times."""
    return [
        ': "${1:?usage: run_and_time.sh NEW_FOLDER [FOLDER, with the source and the data of the command]}"',
        'mkdir -p "$(dirname "$1")"',
        'out="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"',
        'work="${2:-}"',
        'if test -z "$work"; then',
        '    work="$(mktemp -d)"  # keep the package unchanged',
        f'    cp -R "$here/{source_copies.SOURCE}/." "$work"',
        "fi",
        'cd "$work"',
        "# Exit status 3: the target was not reached.",
        f'python -m timedrun run command "$here/{RUN_FILE}" --runs {runs} --first-seed {first_seed} \\',
        '    --results "$out" || test $? -eq 3',
    ]
