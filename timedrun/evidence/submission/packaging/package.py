"""Build a package of result sets in MLPerf's layout, with source, scripts and manifest, atomically."""

import gzip
import os
import shlex
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from judging.checking.check_report import CheckResult, group_lines, verdict
from judging.checking.verdicts import check_package as check_strictly
from judging.ground.errors import UsageError
from judging.ground.ledger import parse
from judging.ground.result_files import digests
from judging.pages.score_table import table
from judging.scoring.score import Score
from mlevents.event import Finding
from mlevents.mlcommons import CheckStatus, OfficialVerdict, check_package
from mlevents.rounds import MLPERF_RULESETS, Ruleset, default_ruleset
from mlevents.rounds import ruleset as rules_named
from mlevents.rounds.own_rules import NOT_APPLICABLE, in_force, own_rules_of, usual_ruleset_of
from timedrun.evidence.submission.packaging.package_layout import missing_files, write_manifest, write_tree
from timedrun.evidence.submission.packaging.package_scripts import IMPLEMENTATION
from timedrun.evidence.submission.packaging.result_folder import NONE_RECORDED, STATUS_WORDS, ResultFolder, open_results
from timedrun.evidence.submission.packaging.safe_files import PackageError, content, safe_name
from timedrun.runner.provenance.source import provenance
from timedrun.runner.provenance.system_answers import SET_BY_RUNS, Answers, open_keys

__all__ = ["PackageError", "PackageReport", "package"]

REMEDY = (
    "Put answers as texts by key into a JSON file, which `timedrun doctor --system --answers FILE` begins on the"
    " system, and pass --answers FILE. Pass the code of another trainer with --code FOLDER."
)


@dataclass(frozen=True, kw_only=True)
class PackageReport:
    """Report on a package: folder, archive, both verdicts and notes for its submitter."""

    folder: Path
    archive: Path
    archive_sha256: str
    ruleset: str
    demonstration: bool
    official: OfficialVerdict
    strict: CheckStatus
    findings: list[Finding]
    scores: list[Score]
    files: int
    notes: list[str]

    @property
    def passed(self) -> bool:
        """True if both checks pass: MLCommons' by today's rule files or by the round's own, if it has rules."""
        official = "pass" in (self.official.verdict, self.official.own_round) or self.ruleset not in MLPERF_RULESETS
        return official and self.strict == "pass"

    def as_dict(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    @property
    def text(self) -> str:
        kind = "demonstration" if self.demonstration else "package"
        by = f"{self.official.checker}, {self.official.tool}, ruleset {self.ruleset}"
        both = f"{self.official.verdict} with today's rule files, {self.official.own_round} with the round's own"
        known = self.ruleset in MLPERF_RULESETS
        official = f"{both if self.official.defects else self.official.verdict} ({by})" if known else NOT_APPLICABLE
        whole = CheckResult.of(self.folder, "package", self.findings, self.ruleset)
        return "\n".join(
            [
                f"{kind}: {self.folder} ({self.files} files)",
                f"archive: {self.archive} (SHA-256 {self.archive_sha256})",
                f"MLCommons' check: {official}",
                *(f"    {message}" for message in self.official.messages if known),
                f"strict check: {self.strict} (mlevents, ruleset {self.ruleset})",
                *(f"    {line}" for line in group_lines([whole], self.folder.absolute())),
                *(f"note: {note}" for note in self.notes),
                table(self.scores).rstrip(),
            ]
        )


def package(
    sets: Sequence[Path],
    out: Path,
    *,
    submitter: str,
    source: Path,
    ruleset: str | None = None,
    check: bool = True,
    answers: Answers | None = None,
    require_answers: bool = True,
    models: bool = False,
    code: Path | None = None,
) -> PackageReport:
    """Build `out`/<submitter>/ and `out`/<submitter>.tar.gz from sets of results (MLPerf submission rules, 5.7).

    The archive is reproducible from the same sets, source and answers. A package of sets on data other than the
    benchmark's is marked as a demonstration. Everything is written to a temporary folder next to `out`, which is
    renamed at the end. A package that fails a check is kept, with the verdict in the report and the manifest.

    Args:
        sets: folders that `timedrun run` wrote; each becomes a system, named by its logs' submission_platform.
        source: root of the source tree of the runs.
        ruleset: such as "2.0.0"; default: the benchmark's own.
        check: run MLCommons' package checker and the strict checks; otherwise both verdicts are "not run".
        answers: a person's answers for the system description.
        models: add the models that the runs kept (`keep_model`).
        code: folder with the code of another trainer, if its logs are packaged.
        require_answers: refuse a submission, though not a demonstration, whose system description lacks an answer.

    Raises PackageError, before anything is written, if `out` exists, an answer is lacking, or a set is incomplete,
    unsafe or contradicts another; UsageError if an answer contradicts what was measured.
    """
    if os.path.lexists(out):
        raise PackageError(f"{out} already exists and was not overwritten; choose a new folder.")
    safe_name(submitter, "the submitter's name")
    opened, rules = _open_all(sets, submitter, ruleset, code)
    for folder in sets:
        if out.resolve().is_relative_to(folder.resolve()):
            raise PackageError(f"{out} is inside the set {folder}; choose a folder outside it.")
    opened = [_described(result, rules, answers) for result in opened]
    _refuse_two_descriptions(opened)
    demonstration = opened[0].score.demonstration
    lacking = missing_files(code, opened) if opened[0].is_external else []
    if require_answers and rules.checker and not demonstration:
        needed = {result.system: open_keys(result.description)[0] for result in opened}
        lacking += [f"{system}: {key}" for system, of in needed.items() for key in of]
    if lacking:
        raise PackageError(
            "\n  ".join(["What MLPerf's rules require is missing; nothing was packaged:", *lacking, REMEDY])
        )
    source = code or source
    try:
        with _new_folder(out) as part:
            folder = part / submitter
            added = write_tree(folder, opened, rules, source, models=models)
            checker = f"mlperf-logging {rules.checker}".strip()
            official = OfficialVerdict("not run", "package_checker", checker, rules.name, ())
            findings = None
            write_manifest(folder, opened, rules, source, official, findings)
            if check:
                findings = check_strictly(folder, rules)
                official = check_package(folder, rules.name)
                write_manifest(folder, opened, rules, source, official, findings)
            files = sum(path.is_file() for path in folder.rglob("*"))
            archive = part / f"{submitter}.tar.gz"
            write_archive(folder, archive)
            archive_sha256 = digests(part)[archive.name]
            part.rename(out)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        raise PackageError(
            f"{out}: the package could not be written ({error.strerror or error}{place}); no files were kept."
        ) from None
    no_image = []
    if not opened[0].is_external and any(NONE_RECORDED in result.recorded("image_digest") for result in opened):
        no_image = ["container image: none recorded; in a container, set TIMEDRUN_IMAGE_DIGEST to record its digest."]
    return PackageReport(
        folder=out / submitter,
        archive=out / archive.name,
        archive_sha256=archive_sha256,
        ruleset=rules.name,
        demonstration=demonstration,
        official=official,
        strict="not run" if findings is None else verdict(findings),
        findings=findings or [],
        scores=[result.score for result in opened],
        files=files,
        notes=list(dict.fromkeys([*no_image, *added, *(note for result in opened for note in _notes(result, source))])),
    )


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `out`; remove it, and any parents created for it, unless it was renamed."""
    above = [parent for parent in out.absolute().parents if not parent.exists()]
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        part.mkdir(parents=True)
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for parent in above:  # deepest first; non-empty ones are kept, as after success
            with suppress(OSError):
                parent.rmdir()


def write_archive(folder: Path, archive: Path) -> None:
    """Pack `folder` as `archive` (.tar.gz): sorted, without owners, times or the machine's permissions. The same files
    yield the same bytes with the same version of zlib, and the same tar with any version."""
    with (
        open(archive, "wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        tar.add(folder, folder.name, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.name.endswith(".sh") else 0o644
    return entry


def _open_all(
    sets: Sequence[Path], submitter: str, ruleset: str | None, code: Path | None
) -> tuple[list[ResultFolder], Ruleset]:
    if not sets:
        raise PackageError("no result set; nothing was packaged; pass at least one folder of results.")
    folders: dict[Path, Path] = {}
    for folder in sets:
        if other := folders.get(folder.resolve()):
            raise PackageError(f"{folder} and {other} are the same set; pass it once.")
        folders[folder.resolve()] = folder
    opened = [open_results(folder, ruleset) for folder in sets]
    rules = _rules(opened, ruleset)
    first = opened[0]
    systems: dict[tuple[str, str], Path] = {}
    for result in opened:
        where = result.folder
        if result.submitter != submitter:
            both = f"submission_org is {result.submitter}, but the package's is {submitter}"
            remedy = "leave out --submitter, or run again with --submission.organization"
            raise PackageError(f"{where}: the logs' {both}; nothing was packaged: {remedy} {shlex.quote(submitter)}.")
        if result.score.demonstration != first.score.demonstration:
            raise PackageError(
                f"{result.folder} is on {result.score.dataset}, {first.folder} on {first.score.dataset}: only one of "
                "them is a demonstration; package them separately."
            )
        if result.is_external != first.is_external:
            raise PackageError(f"{where} and {first.folder}: one is of another trainer; package them separately.")
        if code and not result.is_external:
            raise PackageError(f"{where}: timedrun made these runs and knows their code; leave out --code.")
        if result.system.casefold() == (code.name.casefold() if code else IMPLEMENTATION):
            raise PackageError(f"{where}: the system id {result.system} is reserved for the source; use another.")
        place = (result.system.casefold(), result.benchmark)  # some file systems ignore case
        if other := systems.get(place):
            raise PackageError(
                f"{result.folder} and {other} both have the system id {result.system}, but a package has one set per "
                "system and benchmark; run one of them with another submission_platform."
            )
        systems[place] = result.folder
    return opened, rules


def _rules(opened: Sequence[ResultFolder], ruleset: str | None) -> Ruleset:
    try:
        own = {result.benchmark: own_rules_of(result.records) for result in opened}
        names = {
            benchmark: ruleset or usual_ruleset_of(benchmark, rules) or default_ruleset(benchmark)
            for benchmark, rules in own.items()
        }
        if len(set(names.values())) > 1:
            asked = ", ".join(f"{benchmark} of {name}" for benchmark, name in names.items())
            raise PackageError(
                f"the benchmarks belong to different rounds ({asked}); choose one with --ruleset, or package them "
                "separately."
            )
        rules = rules_named(next(iter(names.values())))
    except ValueError as error:
        raise PackageError(f"{error}; nothing was packaged.") from None
    for benchmark in names:
        if benchmark not in in_force(rules, own[benchmark]).benchmarks:
            raise PackageError(f"ruleset {rules.name} has no rules for {benchmark}; nothing was packaged.")
    return rules


def _described(result: ResultFolder, rules: Ruleset, answers: Answers | None) -> ResultFolder:
    """Return `result` with `answers` in its system description, and its status as spelt in the round."""
    description = dict(result.description)
    if answers is not None:
        if result.is_external:  # which the strict check compares with the logs
            description |= {key: answers.given[key] for key in SET_BY_RUNS & answers.given.keys()}
        try:
            description = answers.applied(description)
        except UsageError as error:
            raise UsageError(f"{result.folder}: {error}") from None
    status = STATUS_WORDS.get(str(description["status"]), str(description["status"]))
    if rules.system_status_words:
        if status not in rules.system_status_words:
            raise PackageError(f"{result.folder}: round {rules.round} has no status {status!r}; nothing was packaged.")
        description["status"] = status
    return replace(result, description=description)


def _refuse_two_descriptions(opened: Sequence[ResultFolder]) -> None:
    """Raise PackageError if sets of one system, which share systems/<system>.json, have different descriptions."""
    seen: dict[str, ResultFolder] = {}
    for result in opened:
        other = seen.setdefault(result.system.casefold(), result)
        changed = [key for key, value in result.description.items() if other.description.get(key) != value]
        if changed or other.system != result.system:
            raise PackageError(
                f"{result.folder} and {other.folder} describe the system {result.system} differently "
                f"({', '.join(changed) or 'its case'}); run one of them with another submission_platform."
            )


def _notes(result: ResultFolder, source: Path) -> list[str]:
    """Return what the submitter should review before publishing the package."""
    notes = list(result.notes)
    commit = provenance(source)["commit"]
    commits = {recorded["commit"] for recorded in result.provenances if isinstance(recorded.get("commit"), str)}
    if others := sorted(commits - {str(commit)}):
        notes.append(f"{result.folder}: runs record commit {', '.join(others)}, but the source is at commit {commit}.")
    places = {bytes(path.resolve()) for path in (result.folder, source, Path.home())} - {b"/"}
    logs = {record.path: content(record.path) for record in result.records}
    notes += [
        f"{file}: contains a path of this machine, which readers of the package will see."
        for file, raw in (logs | result.contents).items()
        if any(place in raw for place in places)
    ]
    if result.score.reason:
        notes.append(f"{result.folder}: no score: {result.score.reason}.")
    if result.left_out:
        notes.append(f"{result.folder}: not packaged, outside of the median window: {', '.join(result.left_out)}.")
    notes += [f"{result.folder}: {text}." for text in result.announced]
    if result.ledger is not None:
        notes.append(f"ledger head {parse(result.ledger).head}: publish it or send it to reviewers before the results.")
    if needed := open_keys(result.description)[0]:
        notes.append(
            f"{result.system}: a submission also needs answers for {', '.join(needed)}: fill in the file of `timedrun "
            "doctor --system --answers FILE` and pass it with --answers FILE."
        )
    return notes
