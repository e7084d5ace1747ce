"""One set of results on disk, as `timedrun run` leaves it: read whole and judged fit to be packaged, or refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlevents import keys
from mlevents.record import RunRecord, read, result_files
from timedrun.errors import TimedrunError
from timedrun.results import ResultPaths, read_json
from timedrun.submission.score import Score, natural, score_set
from timedrun.system import SYSTEM_KEYS

SHARED_KEYS = (
    keys.SUBMISSION_BENCHMARK,
    keys.SUBMISSION_PLATFORM,
    keys.SUBMISSION_ORG,
    keys.SUBMISSION_DIVISION,
    keys.SUBMISSION_STATUS,
    keys.DATASET,
    keys.QUALITY_TARGET,
    keys.CONFIG_DIGEST,
)
"""What every run of a set must have logged alike, as far as it came to log it."""


class PackageError(TimedrunError):
    """A package cannot be made of what was given: the message names the path and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class ResultFolder:
    """A set of runs of one config on one system: the logs and, per run, the files beside them."""

    folder: Path
    system: str
    benchmark: str
    submitter: str
    logged: dict[str, Any]
    """What the logs agree on, by key."""
    records: list[RunRecord]
    paths: list[ResultPaths]
    description: dict[str, Any]
    """The system description of the first run, in MLPerf's keys."""
    configs: list[dict[str, Any]]
    score: Score
    notes: list[str]

    @property
    def package_name(self) -> str:
        """Import name of the benchmark's code."""
        return str(self.configs[0]["benchmark"])

    @property
    def ranks(self) -> int:
        """Processes that a run had, as it recorded itself; 1 where it did not."""
        path = self.paths[0].provenance
        ranks = _object(path).get("ranks") if path.is_file() else 1
        return ranks if isinstance(ranks, int) and ranks > 0 else 1

    def traces(self, words: Iterable[str]) -> list[Path]:
        """The files to be packaged that hold one of `words`, such as paths of the machine where the runs were made."""
        beside = [file for run in self.paths for file in (run.config, run.provenance, run.environment, run.system)]
        files = [record.path for record in self.records] + [file for file in beside if file.is_file()]
        sought = [word.encode() for word in words]
        return [file for file in files if any(word in file.read_bytes() for word in sought)]

    @property
    def commits(self) -> set[str]:
        """The source commits that the runs recorded themselves."""
        found = {_object(run.provenance).get("commit") for run in self.paths if run.provenance.is_file()}
        return {commit for commit in found if isinstance(commit, str)}


def safe_name(name: object, what: str) -> str:
    """`name`, if it can be a folder's name on any system and in git: MLCommons refuses spaces and leading dots.

    Raises:
        PackageError: it cannot; `what` says where it comes from.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,99}", name) or ".." in name:
        raise PackageError(
            f"{what} is {name!r}, which cannot name a folder of a package: use up to 100 letters, digits and . _ + = - "
            "that begin with a letter or digit and hold no '..'."
        )
    return name


def open_results(folder: Path, ruleset: str | None = None) -> ResultFolder:
    """Read the set in `folder` and everything beside its logs.

    Raises:
        PackageError: something is missing, unsafe or contradicts itself.
    """
    if not folder.is_dir():
        raise PackageError(f"{folder}: no such folder; name one that `timedrun run` wrote.")
    _refuse_strange_entries(folder)
    records = [read(file) for file in _logs(folder)]
    logged = {key: _agreed(folder, records, key) for key in SHARED_KEYS}
    where = f"{folder}: the logs' value of"
    system = safe_name(logged[keys.SUBMISSION_PLATFORM], f"{where} {keys.SUBMISSION_PLATFORM}")
    benchmark = safe_name(logged[keys.SUBMISSION_BENCHMARK], f"{where} {keys.SUBMISSION_BENCHMARK}")
    submitter = safe_name(logged[keys.SUBMISSION_ORG], f"{where} {keys.SUBMISSION_ORG}")
    paths = [ResultPaths(folder, int(record.path.stem.partition("_")[2])) for record in records]
    for run in paths:
        for file in (run.config, run.system, run.environment):
            if not file.is_file():
                raise PackageError(f"{file}: missing; without it run {run.number} cannot be repeated or described.")
    configs = [_object(run.config) for run in paths]
    for run, config in zip(paths, configs, strict=True):
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", str(config.get("benchmark", ""))):
            raise PackageError(f"{run.config}: its 'benchmark' is not the import name of a benchmark package.")
        if config["benchmark"] != configs[0]["benchmark"]:
            raise PackageError(f"{run.config}: of {config['benchmark']}, others are of {configs[0]['benchmark']}.")
    descriptions = [_description(run.system, logged) for run in paths]
    return ResultFolder(
        folder=folder,
        system=system,
        benchmark=benchmark,
        submitter=submitter,
        logged=logged,
        records=records,
        paths=paths,
        description=descriptions[0],
        configs=configs,
        score=score_set(records, submitter=submitter, system=system, benchmark=benchmark, ruleset=ruleset),
        notes=_differences(paths, descriptions),
    )


def _refuse_strange_entries(folder: Path) -> None:
    """Nothing in a set may lead out of it or carry a name that a list or a shell could misread."""
    inside = folder.resolve()
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            entry = Path(parent, name)
            if re.search(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029\ud800-\udfff]", name):
                raise PackageError(f"{str(entry)!r}: the name holds control characters; rename it.")
            if entry.is_symlink() and not entry.resolve().is_relative_to(inside):
                raise PackageError(f"{entry}: a symbolic link that leads out of the set; put the file itself there.")


def _logs(folder: Path) -> list[Path]:
    named = sorted((path for path in folder.glob("result_*.txt")), key=natural)
    logs = {path for path in result_files(folder) if path.parent == folder}
    if not named:
        deeper = sorted({path.parent for path in result_files(folder)})
        hint = f" Its sets lie in {', '.join(map(str, deeper))}: name these." if deeper else ""
        raise PackageError(f"{folder}: holds no result_N.txt, so there is nothing to package.{hint}")
    for path in named:
        if not re.fullmatch(r"result_(0|[1-9][0-9]{0,8})\.txt", path.name):
            raise PackageError(f"{path}: a result of a run is named result_N.txt with a number N; rename or remove it.")
        if path not in logs:
            raise PackageError(f"{path}: not an MLPerf log (or a link to one); remove it.")
    return named


def _agreed(folder: Path, records: list[RunRecord], key: str) -> Any:
    """The one value of `key` in all logs that have it."""
    seen: dict[str, str] = {}
    for record in records:
        if (value := record.value(key)) is not None:
            seen.setdefault(repr(value), record.path.name)
    if len(seen) > 1:
        mixed = ", ".join(f"{value} in {name}" for value, name in seen.items())
        raise PackageError(f"{folder}: results of mixed {key} ({mixed}) are no set; package them apart.")
    return next((value for record in records if (value := record.value(key)) is not None), None)


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise PackageError(f"{path}: not a JSON object.")
    return content


def _description(path: Path, logged: dict[str, Any]) -> dict[str, Any]:
    """The system description in `path`, in MLPerf's keys and order, if it agrees with the log.

    Nobody's checker compares the two (mlcommons/logging issue 241), and it crashes on fields that are not text.
    """
    content = _object(path)
    for key in SYSTEM_KEYS:
        if key not in content:
            raise PackageError(f"{path}: lacks {key}, which MLPerf's system description needs (it may be empty).")
        if not isinstance(content[key], str) and not (key == "other_software_stack" and isinstance(content[key], dict)):
            raise PackageError(f"{path}: {key} is {content[key]!r}; a system description holds text only.")
    for key, log_key in (
        ("submitter", keys.SUBMISSION_ORG),
        ("system_name", keys.SUBMISSION_PLATFORM),
        ("division", keys.SUBMISSION_DIVISION),
        ("status", keys.SUBMISSION_STATUS),
    ):
        if content[key] != logged[log_key]:
            raise PackageError(f"{path}: {key} is {content[key]!r}, but the logs say {log_key} {logged[log_key]!r}.")
    return {key: content[key] for key in SYSTEM_KEYS}


def _differences(paths: list[ResultPaths], descriptions: list[dict[str, Any]]) -> list[str]:
    notes = []
    for run, description in zip(paths, descriptions, strict=True):
        changed = [key for key in SYSTEM_KEYS if description[key] != descriptions[0][key]]
        if changed:
            notes.append(f"{run.system}: differs from run {paths[0].number} in {', '.join(changed)}.")
        if run.environment.read_bytes() != paths[0].environment.read_bytes():
            notes.append(f"{run.environment}: differs from that of run {paths[0].number}; both are packaged.")
    return notes
