"""Sets of results as one package in MLPerf's layout, with source, scripts and manifest: made whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlevents.checks.finding import Finding
from mlevents.mlcommons import OfficialVerdict, check_package
from mlevents.rounds import MLPERF_RULESETS, Ruleset, default_ruleset
from mlevents.rounds import ruleset as rules_named
from timedrun.errors import UsageError
from timedrun.provenance.system import provenance
from timedrun.provenance.system_answers import Answers, open_keys
from timedrun.submission.packaging.archive import archived, digests, write_archive
from timedrun.submission.packaging.described_system import STATUS_WORDS
from timedrun.submission.packaging.package_docs import IMPLEMENTATION
from timedrun.submission.packaging.package_layout import Verdicts, refuse_unfit, write_manifest, write_tree
from timedrun.submission.packaging.result_folder import NONE_RECORDED, ResultFolder, open_results
from timedrun.submission.packaging.safe_files import PackageError, safe_name
from timedrun.submission.scoring.score import Score, table
from timedrun.submission.verdicts import check_package as check_strictly
from timedrun.submission.verdicts import told, verdict

__all__ = ["PackageError", "PackageReport", "package"]


@dataclass(frozen=True, kw_only=True)
class PackageReport:
    """What was made: the package's folder, its archive, both verdicts, and what a person should know of it."""

    folder: Path
    archive: Path
    archive_sha256: str
    ruleset: str
    demonstration: bool
    official: OfficialVerdict
    strict: str
    findings: list[Finding]
    scores: list[Score]
    files: int
    notes: list[str]

    @property
    def passed(self) -> bool:
        """Whether both checks pass: MLCommons' by today's rule files or by the round's own, unless it knows neither."""
        official = "pass" in (self.official.verdict, self.official.own_round) or self.ruleset not in MLPERF_RULESETS
        return official and self.strict == "pass"

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        return plain | {
            "official": asdict(self.official),
            "findings": [asdict(one) for one in self.findings],
            "scores": [asdict(one) for one in self.scores],
        }

    @property
    def text(self) -> str:
        """The report in words."""
        kind = "demonstration" if self.demonstration else "package"
        by = f"{self.official.checker}, {self.official.tool}, ruleset {self.ruleset}"
        own = (
            f" with today's rule files, {self.official.own_round} with the round's own" if self.official.defects else ""
        )
        return "\n".join(
            [
                f"{kind}: {self.folder} ({self.files} files)",
                f"archive: {self.archive} (SHA-256 {self.archive_sha256})",
                f"MLCommons' check: {self.official.verdict}{own} ({by})",
                *(f"    {message}" for message in self.official.messages),
                f"strict check: {self.strict} (mlevents, ruleset {self.ruleset})",
                *(f"    {line}" for line in told(self.findings)),
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
) -> PackageReport:
    """Build `out`/<submitter>/ and `out`/<submitter>.tar.gz from sets of results (MLPerf submission rules, 5.7).

    The archive has the same bytes whenever it is made from the same sets, source and answers. A package of sets on
    other data than the benchmark's is a demonstration, and says so. Everything is written beside `out` and renamed at
    the end; a package that a checker fails is made too, with the verdict in the report and the manifest.

    Args:
        sets: folders that `timedrun run` wrote; each becomes a system, named by its logs' submission_platform.
        source: root of the source tree that made the runs.
        ruleset: such as "2.0.0"; default: the benchmark's own.
        check: run MLCommons' package checker and the strict checks; otherwise both verdicts are "not run".
        answers: what a person says of the system that the machine did not tell.

    Raises:
        PackageError: `out` exists, or a set is incomplete, unsafe or contradicts another; nothing was written.
        UsageError: an answer contradicts what was measured.
        TimedrunError: the source cannot be read.
    """
    if os.path.lexists(out):
        raise PackageError(f"{out}: exists already and is left as it is; name a new folder.")
    safe_name(submitter, "the submitter's name")
    opened, rules = _open_all(sets, submitter, ruleset)
    for folder in sets:
        if out.resolve().is_relative_to(folder.resolve()):
            raise PackageError(f"{out}: lies inside the set {folder}; name a folder elsewhere.")
    opened = [_described(one, rules, answers) for one in opened]
    _refuse_two_descriptions(opened)
    demonstration = opened[0].score.demonstration
    try:
        with _new_folder(out) as part:
            folder = part / submitter
            added = write_tree(folder, submitter, opened, rules, demonstration, source)
            verdicts = Verdicts(OfficialVerdict("not run", "package_checker", _checker(rules), rules.name, ()))
            write_manifest(folder, submitter, opened, rules, verdicts, source)
            if check:
                verdicts = _verdicts(folder, rules)
                write_manifest(folder, submitter, opened, rules, verdicts, source)
            files = refuse_unfit(folder)
            archive = part / f"{submitter}.tar.gz"
            write_archive(folder, archive)
            if archived(archive) != digests(folder):
                raise PackageError(f"{out}: not made, the archive does not read back as what was written.")
            archive_sha256 = digests(part)[archive.name]
            part.rename(out)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        raise PackageError(f"{out}: not made, nothing is left of it ({error.strerror or error}{place}).") from None
    return PackageReport(
        folder=out / submitter,
        archive=out / archive.name,
        archive_sha256=archive_sha256,
        ruleset=rules.name,
        demonstration=demonstration,
        official=verdicts.official,
        strict=verdicts.strict,
        findings=list(verdicts.findings),
        scores=[one.score for one in opened],
        files=files,
        notes=[*_images(opened), *added, *(note for one in opened for note in _notes(one, source))],
    )


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out`; unless it was renamed, nothing of it or of the folders above stays."""
    above = [parent for parent in out.absolute().parents if not parent.exists()]
    part: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        mask = os.umask(0o077)
        os.umask(mask)
        part.chmod(0o777 & ~mask)  # mkdtemp makes it private
        yield part
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)
        for parent in above:  # deepest first; one that holds something, as after success, stays
            try:
                parent.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise


def _verdicts(folder: Path, rules: Ruleset) -> Verdicts:
    """MLCommons' verdict and the strict one on the tree as it lies there."""
    findings = check_strictly(folder, rules)
    return Verdicts(check_package(folder, rules), verdict(findings), tuple(findings))


def _checker(rules: Ruleset) -> str:
    return f"mlperf-logging {rules.checker}".strip()


def _open_all(sets: Sequence[Path], submitter: str, ruleset: str | None) -> tuple[list[ResultFolder], Ruleset]:
    if not sets:
        raise PackageError("no set of results is named, so there is nothing to package.")
    folders: dict[Path, Path] = {}
    for folder in sets:
        if other := folders.get(folder.resolve()):
            raise PackageError(f"{folder} and {other} are the same set; name it once.")
        folders[folder.resolve()] = folder
    opened = [open_results(folder, ruleset) for folder in sets]
    rules = _rules(opened, ruleset)
    first = opened[0]
    systems: dict[tuple[str, str], Path] = {}
    for one in opened:
        if one.submitter != submitter:
            raise PackageError(f"{one.folder}: the logs' submission_org is {one.submitter}, the package's {submitter}.")
        if one.score.demonstration != first.score.demonstration:
            raise PackageError(
                f"{one.folder} is on {one.score.dataset}, {first.folder} on {first.score.dataset}: one of them is a "
                "demonstration, the other is not; package them apart."
            )
        if one.system.casefold() == IMPLEMENTATION:
            raise PackageError(f"{one.folder}: the system id {one.system} is that of the source's folder; use another.")
        place = (one.system.casefold(), one.benchmark)  # on some file systems names that differ in case only are one
        if other := systems.get(place):
            raise PackageError(
                f"{one.folder} and {other} both have the system id {one.system}, and a package has one set per system "
                "and benchmark; give one a submission_platform of its own before running it."
            )
        systems[place] = one.folder
    return opened, rules


def _rules(opened: Sequence[ResultFolder], ruleset: str | None) -> Ruleset:
    """The one ruleset that a package is made for."""
    try:
        names = {one.benchmark: ruleset or default_ruleset(one.benchmark) for one in opened}
        if len(set(names.values())) > 1:
            asked = ", ".join(f"{benchmark} of {name}" for benchmark, name in names.items())
            raise PackageError(f"the benchmarks are of different rounds ({asked}); name one with --ruleset, or "
                               "package them apart.")  # fmt: skip
        rules = rules_named(next(iter(names.values())))
    except ValueError as error:
        raise PackageError(f"{error}; nothing was packaged.") from None
    for benchmark in names:
        if benchmark not in rules.benchmarks:
            raise PackageError(f"ruleset {rules.name} has no rules for {benchmark}; nothing was packaged.")
    return rules


def _described(one: ResultFolder, rules: Ruleset, answers: Answers | None) -> ResultFolder:
    """`one` with a person's answers in its system description, and its status in the words of the round."""
    description = dict(one.description)
    if answers is not None:
        try:
            description = answers.applied(description)
        except UsageError as error:
            raise UsageError(f"{one.folder}: {error}") from None
    status = STATUS_WORDS.get(str(description["status"]), str(description["status"]))
    if rules.system_status_words:
        if status not in rules.system_status_words:
            raise PackageError(f"{one.folder}: {rules.round} has no status {status!r}; nothing was packaged.")
        description["status"] = status
    return replace(one, description=description)


def _refuse_two_descriptions(opened: Sequence[ResultFolder]) -> None:
    """A system that ran several benchmarks has one systems/<system>.json."""
    seen: dict[str, ResultFolder] = {}
    for one in opened:
        other = seen.setdefault(one.system.casefold(), one)
        changed = [key for key, value in one.description.items() if other.description[key] != value]
        if changed or other.system != one.system:
            raise PackageError(
                f"{one.folder} and {other.folder} describe the system {one.system} differently "
                f"({', '.join(changed) or 'its case'}); give one a submission_platform of its own before running it."
            )


def _images(opened: Sequence[ResultFolder]) -> list[str]:
    if any(NONE_RECORDED in one.recorded("image_digest") for one in opened):
        return ["container image: none recorded; runs in a container learn its digest from TIMEDRUN_IMAGE_DIGEST."]
    return []


def _notes(one: ResultFolder, source: Path) -> list[str]:
    """What a person should look at before giving the package to others."""
    notes = list(one.notes)
    commit = provenance(source)["commit"]
    if others := sorted(one.commits - {str(commit)}):
        notes.append(f"{one.folder}: its runs record commit {', '.join(others)}, the source is {commit}.")
    places = {str(path.resolve()) for path in (one.folder, source, Path.home())} - {"/"}
    notes += [f"{file}: names a folder of this machine, which readers will see." for file in one.traces(places)]
    if one.score.reason:
        notes.append(f"{one.folder}: no score, because {one.score.reason}.")
    if one.left_out:
        notes.append(
            f"{one.folder}: not packaged, as the runs of the median window stand for all: {', '.join(one.left_out)}."
        )
    if needed := open_keys(one.description)[0]:
        notes.append(
            f"{one.system}: without an answer that MLPerf's rules ask for: {', '.join(needed)}. `timedrun system --out "
            "FILE` asks for them, --answers FILE gives them."
        )
    return notes
