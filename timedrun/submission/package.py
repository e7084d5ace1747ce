"""Sets of results as one package in MLPerf's layout, with source, scripts and manifest: made whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlevents.official import OfficialVerdict, check_package
from mlevents.rounds import Ruleset, default_ruleset
from mlevents.rounds import ruleset as rules_named
from timedrun.submission import documents
from timedrun.submission.archive import digests, write_archive
from timedrun.submission.documents import IMPLEMENTATION
from timedrun.submission.result_folder import PackageError, ResultFolder, open_results, safe_name
from timedrun.submission.score import NOTICE, Score, table
from timedrun.submission.source_tree import source_files
from timedrun.system import provenance, unknown

__all__ = ["PackageError", "PackageReport", "package"]

LARGEST_FILE = 50 * 2**20
"""Bytes; MLCommons' repository checker refuses larger files."""


@dataclass(frozen=True, kw_only=True)
class PackageReport:
    """What was made: the package's folder, its archive, MLCommons' verdict, and what a person should know of it."""

    folder: Path
    archive: Path
    archive_sha256: str
    ruleset: str
    demonstration: bool
    official: OfficialVerdict
    scores: list[Score]
    files: int
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        return plain | {"official": asdict(self.official), "scores": [asdict(one) for one in self.scores]}

    @property
    def text(self) -> str:
        """The report in words."""
        kind = "demonstration" if self.demonstration else "package"
        by = f"{self.official.checker}, {self.official.tool}, ruleset {self.ruleset}"
        return "\n".join(
            [
                f"{kind}: {self.folder} ({self.files} files)",
                f"archive: {self.archive} (SHA-256 {self.archive_sha256})",
                f"MLCommons' check: {self.official.verdict} ({by})",
                *(f"    {message}" for message in self.official.messages),
                *(f"note: {note}" for note in self.notes),
                table(self.scores).rstrip(),
            ]
        )


def package(
    sets: Sequence[Path], out: Path, *, submitter: str, source: Path, ruleset: str | None = None, check: bool = True
) -> PackageReport:
    """Build `out`/<submitter>/ and `out`/<submitter>.tar.gz from sets of results (MLPerf submission rules, 5.7).

    The archive has the same bytes whenever it is made from the same sets and source. A package of sets on other data
    than the benchmark's is a demonstration, and says so. Everything is written beside `out` and renamed at the end; a
    package that MLCommons' checker fails is made too, with its verdict in the report and the manifest.

    Args:
        sets: folders that `timedrun run` wrote; each becomes a system, named by its logs' submission_platform.
        source: root of the source tree that made the runs.
        ruleset: such as "2.0.0"; default: the benchmark's own.
        check: run MLCommons' package checker; otherwise its verdict is "not run".

    Raises:
        PackageError: `out` exists, or a set is incomplete, unsafe or contradicts another; nothing was written.
        TimedrunError: the source or a file beside a log cannot be read.
    """
    if os.path.lexists(out):
        raise PackageError(f"{out}: exists already and is left as it is; name a new folder.")
    safe_name(submitter, "the submitter's name")
    opened = _open_all(sets, submitter, ruleset)
    rules = _rules(opened[0].benchmark, ruleset)
    demonstration = opened[0].score.demonstration
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise PackageError(f"{out}: cannot be written there ({error.strerror}).") from None
    try:
        part.chmod(0o755)
        folder = part / submitter
        _write(folder, submitter, opened, rules, demonstration, source)
        unasked = OfficialVerdict("not run", "package_checker", f"mlperf-logging {rules.checker}", rules.name, ())
        official = check_package(folder, rules) if check else unasked
        _write_manifest(folder, submitter, opened, official, source)
        files = _refuse_large(folder)
        archive = part / f"{submitter}.tar.gz"
        write_archive(folder, archive)
        archive_sha256 = digests(part)[archive.name]
        part.rename(out)
    except OSError as error:
        raise PackageError(f"{out}: not made, nothing is left of it ({error.strerror}: {error.filename}).") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return PackageReport(
        folder=out / submitter,
        archive=out / archive.name,
        archive_sha256=archive_sha256,
        ruleset=rules.name,
        demonstration=demonstration,
        official=official,
        scores=[one.score for one in opened],
        files=files,
        notes=[note for one in opened for note in _notes(one, source)],
    )


def _open_all(sets: Sequence[Path], submitter: str, ruleset: str | None) -> list[ResultFolder]:
    if not sets:
        raise PackageError("no set of results is named, so there is nothing to package.")
    opened = [open_results(folder, ruleset) for folder in sets]
    first = opened[0]
    systems: dict[str, Path] = {}
    for one in opened:
        if one.submitter != submitter:
            raise PackageError(f"{one.folder}: the logs' submission_org is {one.submitter}, the package's {submitter}.")
        if one.benchmark != first.benchmark:
            raise PackageError(
                f"{one.folder} is of {one.benchmark}, {first.folder} of {first.benchmark}; package them apart."
            )
        if one.score.demonstration != first.score.demonstration:
            raise PackageError(
                f"{one.folder} is on {one.score.dataset}, {first.folder} on {first.score.dataset}: one of them is a "
                "demonstration, the other is not; package them apart."
            )
        if one.system == IMPLEMENTATION:
            raise PackageError(f"{one.folder}: the system id {one.system} is that of the source's folder; use another.")
        if other := systems.get(one.system.casefold()):  # on some file systems names that differ in case only are one
            raise PackageError(
                f"{one.folder} and {other} both have the system id {one.system}, and a package has one set per system; "
                "give one a submission_platform of its own before running it."
            )
        systems[one.system.casefold()] = one.folder
    return opened


def _rules(benchmark: str, ruleset: str | None) -> Ruleset:
    try:
        rules = rules_named(ruleset or default_ruleset(benchmark))
    except ValueError as error:
        raise PackageError(f"{error}; nothing was packaged.") from None
    if benchmark not in rules.benchmarks:
        raise PackageError(f"ruleset {rules.name} has no rules for {benchmark}; nothing was packaged.")
    return rules


def _write(
    folder: Path, submitter: str, sets: Sequence[ResultFolder], rules: Ruleset, demonstration: bool, source: Path
) -> None:
    """Everything but the manifest."""
    made_from = provenance(source)
    implementations = folder / "benchmarks" / sets[0].benchmark / "implementations"
    for place, file in _sources(sets, source).items():
        _copy(file, implementations / IMPLEMENTATION / place)
    if (source / "LICENSE").is_file():
        _copy(source / "LICENSE", folder / "LICENSE")
    _text(folder / "README.md", documents.package_readme(submitter, sets, rules, demonstration, made_from))
    for one in sets:
        for record in one.records:
            _copy(record.path, folder / "results" / one.system / one.benchmark / record.path.name)
        _json(folder / "systems" / f"{one.system}.json", one.description)
        _write_system(implementations / one.system, one, implementations / IMPLEMENTATION, made_from)


def _write_system(folder: Path, one: ResultFolder, source: Path, made_from: Mapping[str, Any]) -> None:
    """How one system ran the packaged `source`: settings, environment, scripts."""
    environment = one.paths[0].environment
    _copy(environment, folder / environment.name)
    for run in one.paths:
        beside = [run.config]
        if run.environment.read_bytes() != environment.read_bytes():
            beside.append(run.environment)
        if run.provenance.is_file():
            beside.append(run.provenance)
        for file in beside:
            _copy(file, folder / "runs" / run.side.name / file.name)
    modules = sorted((source / one.package_name.replace(".", "/")).glob("*.py"))
    _text(folder / "README.md", documents.system_readme(one, source, modules, made_from))
    installed = environment.read_text(encoding="utf-8", errors="replace")
    _text(folder / "setup.sh", documents.setup_script(source, installed))
    _text(folder / "init_datasets.sh", documents.datasets_script(one))
    _text(folder / "run_and_time.sh", documents.run_script(one))
    _json(folder / f"{one.system}_{IMPLEMENTATION}.json", documents.implementation_description(one, made_from))


def _write_manifest(
    folder: Path, submitter: str, sets: Sequence[ResultFolder], official: OfficialVerdict, source: Path
) -> None:
    _json(
        folder / "manifest.json",
        {
            "submitter": submitter,
            "demonstration": sets[0].score.demonstration,
            "verified": False,
            "notice": NOTICE,
            "ruleset": official.ruleset,
            "checked": {"by": official.checker, "tool": official.tool, "verdict": official.verdict},
            "source": provenance(source),
            "scores": [asdict(one.score) for one in sets],
            "files": digests(folder),
        },
    )


def _sources(sets: Sequence[ResultFolder], source: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name in dict.fromkeys(one.package_name for one in sets):
        found |= source_files(source, name)
    for place in found:
        for part in place.split("/"):
            if " " in part or not part.isprintable():
                raise PackageError(f"{source}: the name {place!r} has a space or a control character; rename it.")
    return found


def _refuse_large(folder: Path) -> int:
    """The number of files, if none is larger than MLCommons takes."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        if (size := file.stat().st_size) > LARGEST_FILE:
            raise PackageError(
                f"{file.relative_to(folder)} has {size / 2**20:.0f} MiB and MLCommons refuses files above 50 MiB; no "
                "package was made."
            )
    return len(files)


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
    if open_keys := unknown(one.description):
        notes.append(f"{one.paths[0].system}: without an answer that MLPerf's rules ask for: {', '.join(open_keys)}.")
    return notes


def _copy(file: Path, to: Path) -> None:
    """The bytes of `file`; its times and permissions stay behind."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)
    to.chmod(0o755 if to.suffix == ".sh" else 0o644)


def _text(to: Path, text: str) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text, encoding="utf-8")
    to.chmod(0o755 if to.suffix == ".sh" else 0o644)


def _json(to: Path, values: Mapping[str, Any]) -> None:
    _text(to, json.dumps(values, indent=2) + "\n")
