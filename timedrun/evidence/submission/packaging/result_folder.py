"""Read a result set from disk, as `timedrun run` leaves it, and refuse it if it cannot be packaged."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from judging.ground.result_files import ResultPaths
from judging.scoring.announced_runs import find_ledger, ledger_findings
from judging.scoring.recorded_run import recorded_ranks
from judging.scoring.score import Score, score_set
from mlevents import keys
from mlevents.event import json_fault
from mlevents.package_checker.system_description import KEYS
from mlevents.record import RunRecord, natural, read, result_files
from mlevents.summary import SHARED, summarize
from timedrun.evidence.submission.packaging import safe_files
from timedrun.evidence.submission.packaging.safe_files import PackageError, content, require_plain, safe_name
from timedrun.runner.storage import source_copies
from timedrun.runner.storage.method_sources import own_methods

NONE_RECORDED: Final = "none recorded"
STATUS_WORDS: Final = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "research": "Research, Development, or Internal (RDI)",
    "preview": "Preview",
}
"""A log's submission_status as spelt in system descriptions since round 4.0 (system_desc_checker.py)."""
LOGGED_KEYS: Final = (
    ("submitter", keys.SUBMISSION_ORG),
    ("system_name", keys.SUBMISSION_PLATFORM),
    ("division", keys.SUBMISSION_DIVISION),
    ("status", keys.SUBMISSION_STATUS),
)
"""Keys of a system description that the logs have, too."""


@dataclass(frozen=True, kw_only=True)
class ResultFolder:
    """Set of runs of one config on one system: the logs and each run's other files."""

    folder: Path
    system: str
    benchmark: str
    submitter: str
    logged: dict[str, Any]  # values shared by all logs, by key
    records: list[RunRecord]
    paths: list[ResultPaths]
    contents: dict[Path, bytes]  # of the files in run_N/, read once
    description: dict[str, Any]  # system description of the first run, in MLPerf's keys
    configs: list[dict[str, Any]]
    provenances: list[dict[str, Any]]  # source, image and data of each run; {} if it recorded none
    source: dict[str, bytes]  # of a command, by path
    power: list[Path]  # readings: power/result_N/node_0.txt
    score: Score
    left_out: list[str]  # names of logs that are not packaged, if there are more runs than a submission has
    ledger: bytes | None  # in which its runs were announced; all of it, since parts would not show that none is missing
    announced: list[str]  # which of the announced runs these are, and what contradicts the ledger
    notes: list[str]

    @property
    def is_command(self) -> bool:
        """True if the runs are of a command, whose source is in `source`, and of no benchmark's config."""
        return self.records[0].first(keys.COMMAND) is not None

    @property
    def is_external(self) -> bool:
        """True if another trainer made the runs, of which nothing but the logs is known."""
        return not self.configs[0]

    @property
    def package_name(self) -> str:
        return str(self.configs[0]["benchmark"])

    @property
    def ranks(self) -> int:
        """Recorded number of ranks, 1 if it was not recorded."""
        return recorded_ranks(self.provenances[0])

    @property
    def threads(self) -> int:
        """Value of --threads in the recorded command, 0 if it was not given."""
        command = str(self.provenances[0].get("command", ""))
        given = re.findall(r"(?<!\S)--threads[ =]([0-9]{1,4})(?!\S)", command)
        return int(given[-1]) if given else 0

    @property
    def methods(self) -> list[str]:
        return [str(event.value) for event in self.records[0].all(keys.METHOD)]

    @property
    def own_methods(self) -> dict[str, str | None]:
        """Methods that timedrun does not ship, `module:Class`, each with the SHA-256 of its source when it ran."""
        return own_methods(self.configs[0])

    def recorded(self, key: str) -> list[Any]:
        """Return the distinct values of `key` in the runs' provenance.json, NONE_RECORDED for a missing one."""
        given = [provenance.get(key) for provenance in self.provenances]
        values = [NONE_RECORDED if value in (None, "", {}) else value for value in given]
        return [json.loads(text) for text in dict.fromkeys(json.dumps(value, sort_keys=True) for value in values)]


def open_results(folder: Path, ruleset: str | None = None) -> ResultFolder:
    """Read the set in `folder`: logs and the files of each run, or the system description of another trainer's runs.
    Raise PackageError if a file is missing or unsafe, or files contradict each other."""
    if folder.is_symlink():
        raise PackageError(f"{folder}: a symbolic link; pass the folder itself.")
    if not folder.is_dir():
        raise PackageError(f"{folder}: no such folder; pass a results folder of `timedrun run`.")
    safe_files.refuse_strange_entries(folder)
    if (folder / "scaling.json").exists():
        raise PackageError(f"{folder}/scaling.json: scales the score, and only MLCommons' tools write it; remove it.")
    records = [_read(file) for file in _logs(folder)]
    logged = {key: _agreed(folder, records, key) for key in SHARED}
    where = f"{folder}: the logs' value of"
    paths = [ResultPaths(folder, int(record.path.stem.partition("_")[2])) for record in records]
    external = logged[keys.CONFIG_DIGEST] is None and not any(run.side.exists() for run in paths)
    platform = logged[keys.SUBMISSION_PLATFORM]
    described = _description_of(folder, str(platform)) if external else None
    system = safe_name(described.stem if described else platform, f"{where} {keys.SUBMISSION_PLATFORM}")
    benchmark = safe_name(logged[keys.SUBMISSION_BENCHMARK], f"{where} {keys.SUBMISSION_BENCHMARK}")
    submitter = safe_name(logged[keys.SUBMISSION_ORG], f"{where} {keys.SUBMISSION_ORG}")
    for record in records:
        _refuse_unprintable(record)
        if record.division == keys.CLOSED and (event := record.first(keys.RESUMED)):
            line = f"{record.path}, line {event.line}"
            raise PackageError(f"{line}: the run was resumed, which the closed division forbids; run it again.")
    score, left_out = _score(records, submitter, system, benchmark, ruleset)
    records = [record for record in records if record.path.name not in left_out]
    paths = [ResultPaths(folder, int(record.path.stem.partition("_")[2])) for record in records]
    contents = {} if external else _read_side_files(paths)
    configs = [{} if external else json_object(run.config, contents) for run in paths]
    for run, config in zip(paths, () if external else configs, strict=not external):
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", str(config.get("benchmark", "")), re.ASCII):
            raise PackageError(f"{run.config}: 'benchmark' is not the import name of a package.")
        if config["benchmark"] != configs[0]["benchmark"]:
            raise PackageError(
                f"{run.config}: is a config of {config['benchmark']}, but others are of {configs[0]['benchmark']}."
            )
    path = find_ledger(folder) if any(record.first(keys.LEDGER_ENTRY) for record in records) else None
    announced = ledger_findings([summarize(record) for record in records]) if path else []
    if described:
        given = json_object(described, {described: content(described)}) if described.is_file() else {}
        descriptions = [dict.fromkeys(KEYS, "") | {key: logged[of] for key, of in LOGGED_KEYS} | given]
    else:
        descriptions = [agreed_description(run.system, logged, contents) for run in paths]
    provenances = [json_object(run.provenance, contents) if run.provenance in contents else {} for run in paths]
    opened = ResultFolder(
        folder=folder,
        system=system,
        benchmark=benchmark,
        submitter=submitter,
        logged=logged,
        records=records,
        paths=paths,
        contents=contents,
        description=descriptions[0],
        configs=configs,
        provenances=provenances,
        source=recorded_source(records, paths, configs) if records[0].first(keys.COMMAND) else {},
        power=_power(folder, records),
        score=score,
        left_out=left_out,
        ledger=content(path) if path else None,
        announced=[finding.message for finding in announced],
        notes=[] if external else differences(paths, descriptions, contents),
    )
    for key, text in (("data", "digests of their data"), ("image_digest", "container images")):
        if len(opened.recorded(key)) > 1:
            opened.notes.append(f"{folder}: the runs recorded different {text}; see each run's provenance.json.")
    return opened


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


def _read(file: Path) -> RunRecord:
    require_plain(file)
    record = read(file)
    if not record.events and file.stat().st_size:
        raise PackageError(f"{file}: not an MLPerf log; remove it.")
    return record


def _logs(folder: Path) -> list[Path]:
    named = sorted(folder.glob("result_*.txt"), key=lambda path: natural(path.name))
    if not named:
        deeper = sorted({path.parent for path in result_files(folder)})
        hint = f" Its sets are in {', '.join(map(str, deeper))}: pass these." if deeper else ""
        raise PackageError(f"{folder}: no result_N.txt found; nothing was packaged.{hint}")
    for path in named:
        if not re.fullmatch(r"result_(0|[1-9][0-9]{0,8})\.txt", path.name):
            raise PackageError(f"{path}: not named result_N.txt with a number N; rename or remove it.")
    return named


def _agreed(folder: Path, records: list[RunRecord], key: str) -> Any:
    """Return the one value of `key` in all logs that have it."""
    seen: dict[str, tuple[Any, str]] = {}
    for record in records:
        if (value := record.value(key)) is not None:
            seen.setdefault(repr(value), (value, record.path.name))
    if len(seen) > 1:
        mixed = ", ".join(f"{value} in {name}" for value, (_, name) in seen.items())
        raise PackageError(
            f"{folder}: these results differ in {key} ({mixed}), so they are not one set; package each separately."
        )
    return next((value for value, _ in seen.values()), None)


def _refuse_unprintable(record: RunRecord) -> None:
    """Raise PackageError if a text that enters a package's README could be misread there."""
    for key in (keys.DATASET, keys.CONFIG_NAME, keys.METHOD, keys.SUBMISSION_DIVISION, keys.SUBMISSION_STATUS):
        for event in record.all(key):
            text = str(event.value)
            if not text.isprintable() or len(text) > 200 or re.search(r"[`<>]", text):
                raise PackageError(
                    f"{record.path}, line {event.line}: {key} is {ascii(text[:80])}; a package's README cannot hold "
                    "control characters, markup or more than 200 characters of it."
                )


def _score(
    records: list[RunRecord], submitter: str, system: str, benchmark: str, ruleset: str | None
) -> tuple[Score, list[str]]:
    """Return the score of the packaged runs, and the names of the logs that are left out. If there are more runs than a
    submission has, the median window is packaged (training_rules.adoc, "Benchmark Results")."""
    score = partial(score_set, name=(submitter, system, benchmark), ruleset=ruleset)
    scored = score([summarize(record) for record in records], windows=True)
    if scored.window is None:
        return scored, []
    kept = [summarize(record) for record in records if record.path.name in scored.window]
    return score(kept), [record.path.name for record in records if record.path.name not in scored.window]


def _read_side_files(paths: Sequence[ResultPaths]) -> dict[Path, bytes]:
    """Read the files of each run; all but provenance.json are required."""
    files = {}
    for run in paths:
        if run.side.is_symlink():
            raise PackageError(f"{run.side}: a symbolic link; replace it with the folder.")
        for file in (run.config, run.system, run.environment, run.provenance):
            if file.is_file() or file.is_symlink():
                files[file] = content(file)
            elif file != run.provenance:
                raise PackageError(f"{file}: missing; run {run.number} cannot be repeated or described without it.")
    return files


def _power(folder: Path, records: Sequence[RunRecord]) -> list[Path]:
    """Return the power readings of the packaged runs (submission_rules.adoc, "Training")."""
    paths: list[Path] = []
    for record in records:
        files = (folder / "power" / record.path.stem).glob("*.txt")
        readings = [file for file in files if re.fullmatch(r"(node|sw)_\d{1,9}", file.stem)]
        paths += sorted(readings, key=lambda file: natural(file.name))
    for file in paths:
        require_plain(file)
    return paths


def json_object(path: Path, contents: dict[Path, bytes]) -> dict[str, Any]:
    """Parse the JSON object in `contents[path]`; raise PackageError if it is not one."""
    try:
        values = json.loads(contents[path])
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path}: cannot be read as JSON ({json_fault(error)}).") from None
    if not isinstance(values, dict):
        raise PackageError(f"{path}: not a JSON object.")
    return values


def agreed_description(path: Path, logged: dict[str, Any], contents: dict[Path, bytes]) -> dict[str, Any]:
    """Return the system description in `path`, in MLPerf's keys and order. Raise PackageError if it contradicts the
    logs, lacks a key or holds a value that is not text: MLCommons' checker does not compare it with the logs
    (mlcommons/logging issue 241) and crashes on values that are not text."""
    description = json_object(path, contents)
    for key in KEYS:
        if key not in description:
            raise PackageError(f"{path}: lacks {key}, which MLPerf's system description requires (it may be empty).")
        value = description[key]
        nested = key == "other_software_stack" and isinstance(value, dict)
        if not all(isinstance(text, str) for text in (value.values() if nested else [value])):
            raise PackageError(f"{path}: {key} is {value!r}, not text.")
    for key, log_key in LOGGED_KEYS:
        accepted = (logged[log_key], STATUS_WORDS.get(str(logged[log_key]))) if key == "status" else (logged[log_key],)
        if description[key] not in accepted:
            raise PackageError(f"{path}: {key} is {description[key]!r}, but logs say {log_key} {logged[log_key]!r}.")
    return {key: description[key] for key in KEYS}


def _description_of(folder: Path, platform: str) -> Path:
    """Return the path, which may not exist, of the description of the system of another trainer's logs; its name is the
    system's id: systems/<system>.json of logs in results/<system>/<benchmark>, or a file beside the logs."""
    system, results = folder.absolute().parent, folder.absolute().parent.parent
    if results.name == "results":
        return results.parent / "systems" / f"{system.name}.json"
    files = [path for path in folder.glob("*.json") if path.is_file()]
    return files[0] if len(files) == 1 else folder / f"{re.sub(r'[^A-Za-z0-9._+=-]+', '_', platform)}.json"


def differences(paths: list[ResultPaths], descriptions: list[dict[str, Any]], contents: dict[Path, bytes]) -> list[str]:
    """Return notes on runs of a set whose system or environment differs from the first run's."""
    notes = []
    for run, description in zip(paths, descriptions, strict=True):
        changed = [key for key in KEYS if description[key] != descriptions[0][key]]
        if changed:
            notes.append(f"{run.system}: differs from run {paths[0].number} in {', '.join(changed)}.")
        if contents[run.environment] != contents[paths[0].environment]:
            notes.append(f"{run.environment}: differs from run {paths[0].number}; both are packaged.")
    return notes
