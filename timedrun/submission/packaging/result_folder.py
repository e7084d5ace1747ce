"""One set of results on disk, as `timedrun run` leaves it: read whole and judged fit to be packaged, or refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from mlevents import keys
from mlevents.record import RunRecord, natural, read, result_files
from mlevents.summary import SHARED, summarize
from timedrun.storage.result_files import ResultPaths
from timedrun.submission.packaging.described_system import agreed_description, differences, json_object
from timedrun.submission.packaging.safe_files import (
    PackageError,
    content,
    refuse_strange_entries,
    require_plain,
    safe_name,
)
from timedrun.submission.reproduction.recorded_run import recorded_ranks
from timedrun.submission.scoring.score import Score, score_set

__all__ = ["NONE_RECORDED", "PackageError", "ResultFolder", "open_results"]

NONE_RECORDED: Final = "none recorded"


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
    beside: dict[Path, bytes]
    """The files beside the logs, as they were read once."""
    description: dict[str, Any]
    """The system description of the first run, in MLPerf's keys."""
    configs: list[dict[str, Any]]
    provenances: list[dict[str, Any]]
    """What each run recorded of its source, image and data; {} where it recorded nothing."""
    power: list[Path]
    """Files of power readings, of the layout power/result_N/node_0.txt."""
    score: Score
    left_out: list[str]
    """Names of logs that are not packaged, where more runs were made than a submission has."""
    notes: list[str]

    @property
    def package_name(self) -> str:
        """Import name of the benchmark's code."""
        return str(self.configs[0]["benchmark"])

    @property
    def ranks(self) -> int:
        """Processes that a run had, as it recorded itself; 1 where it did not."""
        return recorded_ranks(self.provenances[0])

    @property
    def threads(self) -> int:
        """CPU threads a rank that a run was started with, 0 where that was left to torch."""
        try:
            words = shlex.split(str(self.provenances[0].get("command", "")))
        except ValueError:
            return 0
        said = [word.removeprefix("--threads=") for word in words if word.startswith("--threads=")]
        said += [after for word, after in zip(words, words[1:], strict=False) if word == "--threads"]
        return int(said[-1]) if said and re.fullmatch(r"[0-9]{1,4}", said[-1]) else 0

    @property
    def methods(self) -> list[str]:
        """The speed-up methods of the first run's log."""
        return [str(event.value) for event in self.records[0].all(keys.METHOD)]

    def recorded(self, key: str) -> list[Any]:
        """The different values of `key` that the runs recorded beside their logs, "none recorded" among them for those
        that did not."""
        values = [one.get(key) if one.get(key) not in (None, "", {}) else NONE_RECORDED for one in self.provenances]
        return [json.loads(text) for text in dict.fromkeys(json.dumps(value, sort_keys=True) for value in values)]

    def traces(self, words: Iterable[str]) -> list[Path]:
        """The files to be packaged that hold one of `words`, such as paths of the machine where the runs were made."""
        sought = [word.encode() for word in words]
        logs = {record.path: content(record.path) for record in self.records}
        return [path for path, raw in (logs | self.beside).items() if any(word in raw for word in sought)]

    @property
    def commits(self) -> set[str]:
        """The source commits that the runs recorded themselves."""
        return {one["commit"] for one in self.provenances if isinstance(one.get("commit"), str)}


def open_results(folder: Path, ruleset: str | None = None) -> ResultFolder:
    """Read the set in `folder` and everything beside its logs.

    Raises:
        PackageError: something is missing, unsafe or contradicts itself.
    """
    if folder.is_symlink():
        raise PackageError(f"{folder}: a symbolic link; name the folder itself.")
    if not folder.is_dir():
        raise PackageError(f"{folder}: no such folder; name one that `timedrun run` wrote.")
    refuse_strange_entries(folder)
    if (folder / "scaling.json").exists():
        raise PackageError(f"{folder}/scaling.json: multiplies the score, and MLCommons' tools write it; remove it.")
    records = [_read(file) for file in _logs(folder)]
    logged = {key: _agreed(folder, records, key) for key in SHARED}
    where = f"{folder}: the logs' value of"
    system = safe_name(logged[keys.SUBMISSION_PLATFORM], f"{where} {keys.SUBMISSION_PLATFORM}")
    benchmark = safe_name(logged[keys.SUBMISSION_BENCHMARK], f"{where} {keys.SUBMISSION_BENCHMARK}")
    submitter = safe_name(logged[keys.SUBMISSION_ORG], f"{where} {keys.SUBMISSION_ORG}")
    _refuse_strange_words(records)
    _refuse_no_results(records)
    score, left_out = _score(records, submitter, system, benchmark, ruleset)
    records = [record for record in records if record.path.name not in left_out]
    paths = [ResultPaths(folder, int(record.path.stem.partition("_")[2])) for record in records]
    beside = _beside(paths)
    configs = [json_object(run.config, beside) for run in paths]
    for run, config in zip(paths, configs, strict=True):
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", str(config.get("benchmark", "")), re.ASCII):
            raise PackageError(f"{run.config}: its 'benchmark' is not the import name of a benchmark package.")
        if config["benchmark"] != configs[0]["benchmark"]:
            raise PackageError(f"{run.config}: of {config['benchmark']}, others are of {configs[0]['benchmark']}.")
    descriptions = [agreed_description(run.system, logged, beside) for run in paths]
    provenances = [json_object(run.provenance, beside) if run.provenance in beside else {} for run in paths]
    opened = ResultFolder(
        folder=folder,
        system=system,
        benchmark=benchmark,
        submitter=submitter,
        logged=logged,
        records=records,
        paths=paths,
        beside=beside,
        description=descriptions[0],
        configs=configs,
        provenances=provenances,
        power=_power(folder, records),
        score=score,
        left_out=left_out,
        notes=differences(paths, descriptions, beside),
    )
    for key, words in (("data", "digests of their data"), ("image_digest", "container images")):
        if len(opened.recorded(key)) > 1:
            opened.notes.append(f"{folder}: its runs recorded different {words}; each is in its run's provenance.json.")
    return opened


def _read(file: Path) -> RunRecord:
    require_plain(file)
    try:
        record = read(file)
        if not record.events and file.stat().st_size:
            raise PackageError(f"{file}: not an MLPerf log; remove it.")
        return record
    except OSError as error:
        raise PackageError(f"{file}: cannot be read ({error.strerror}).") from None


def _logs(folder: Path) -> list[Path]:
    named = sorted(folder.glob("result_*.txt"), key=lambda path: natural(path.name))
    try:
        below = result_files(folder)
    except OSError as error:
        raise PackageError(f"{error.filename or folder}: cannot be read ({error.strerror}).") from None
    if not named:
        deeper = sorted({path.parent for path in below})
        hint = f" Its sets lie in {', '.join(map(str, deeper))}: name these." if deeper else ""
        raise PackageError(f"{folder}: holds no result_N.txt, so there is nothing to package.{hint}")
    for path in named:
        if not re.fullmatch(r"result_(0|[1-9][0-9]{0,8})\.txt", path.name):
            raise PackageError(f"{path}: a result of a run is named result_N.txt with a number N; rename or remove it.")
    return named


def _agreed(folder: Path, records: list[RunRecord], key: str) -> Any:
    """The one value of `key` in all logs that came to log it."""
    seen: dict[str, str] = {}
    for record in records:
        if (value := record.value(key)) is not None:
            seen.setdefault(repr(value), record.path.name)
    if len(seen) > 1:
        mixed = ", ".join(f"{value} in {name}" for value, name in seen.items())
        raise PackageError(f"{folder}: results of mixed {key} ({mixed}) are no set; package them apart.")
    return next((value for record in records if (value := record.value(key)) is not None), None)


def _refuse_strange_words(records: Sequence[RunRecord]) -> None:
    """Texts that enter a package's README files must be what they seem to be there."""
    for record in records:
        for key in (keys.DATASET, keys.CONFIG_NAME, keys.METHOD, keys.SUBMISSION_DIVISION, keys.SUBMISSION_STATUS):
            for event in record.all(key):
                text = str(event.value)
                if not text.isprintable() or len(text) > 200 or re.search(r"[`<>]", text):
                    raise PackageError(
                        f"{record.path}, line {event.line}: {key} is {ascii(text[:80])}; a package's README cannot "
                        "hold control characters, markup or more than 200 characters of it."
                    )


def _refuse_no_results(records: Sequence[RunRecord]) -> None:
    """Runs that cannot be results, however they ended."""
    for record in records:
        if event := record.first(keys.FAULT):
            raise PackageError(
                f"{record.path}, line {event.line}: a fault was asked for in this run, which was a test; run it again."
            )
        if record.division == keys.CLOSED and (event := record.first(keys.RESUMED)):
            raise PackageError(
                f"{record.path}, line {event.line}: the run was interrupted and resumed, and the closed division allows"
                " no such run; run it again."
            )


def _score(
    records: list[RunRecord], submitter: str, system: str, benchmark: str, ruleset: str | None
) -> tuple[Score, list[str]]:
    """The score of what is packaged, and the names of the logs that are left out of it.

    Of more runs than a submission has, those are packaged that followed each other and whose score is the median of all
    such windows (training_rules.adoc, "Benchmark Results").
    """
    score = partial(score_set, submitter=submitter, system=system, benchmark=benchmark, ruleset=ruleset)
    scored = score([summarize(record) for record in records], windows=True)
    if scored.window is None:
        return scored, []
    kept = [summarize(record) for record in records if record.path.name in scored.window]
    return score(kept), [record.path.name for record in records if record.path.name not in scored.window]


def _beside(paths: Sequence[ResultPaths]) -> dict[Path, bytes]:
    """The bytes of the files beside the logs; all but provenance.json must be there."""
    found = {}
    for run in paths:
        if run.side.is_symlink():
            raise PackageError(f"{run.side}: a symbolic link; put the folder itself there.")
        for file in (run.config, run.system, run.environment, run.provenance):
            if file.is_file() or file.is_symlink():
                found[file] = content(file)
            elif file != run.provenance:
                raise PackageError(f"{file}: missing; without it run {run.number} cannot be repeated or described.")
    return found


def _power(folder: Path, records: Sequence[RunRecord]) -> list[Path]:
    """The power readings of the packaged runs (submission_rules.adoc, "Training")."""
    found: list[Path] = []
    for record in records:
        of_run = folder / "power" / record.path.stem
        found += sorted(
            (file for file in of_run.glob("*.txt") if re.fullmatch(r"(node|sw)_\d{1,9}", file.stem)),
            key=lambda file: natural(file.name),
        )
    for file in found:
        require_plain(file)
    return found
