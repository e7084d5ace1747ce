"""Write the files of a package in the layout of MLPerf's submission rules, and the manifest that lists them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from judging.checking.verdicts import LEVELS, verdict
from judging.ground.ledger import LEDGER
from judging.pages.score_table import NOTICE
from mlevents.event import Finding
from mlevents.mlcommons import OfficialVerdict
from mlevents.package_checker.files import MANIFEST
from mlevents.rounds import Ruleset
from timedrun.provenance.system import provenance
from timedrun.submission.packaging import package_docs, package_scripts
from timedrun.submission.packaging.archive import digests
from timedrun.submission.packaging.package_scripts import IMPLEMENTATION
from timedrun.submission.packaging.result_folder import ResultFolder
from timedrun.submission.packaging.safe_files import copy, refuse_colliding, refuse_name, write
from timedrun.submission.packaging.source_tree import source_files, uncommitted


def write_tree(
    folder: Path, submitter: str, sets: Sequence[ResultFolder], rules: Ruleset, demonstration: bool, source: Path
) -> list[str]:
    """Write everything but the manifest; return notes for the submitter. Raise PackageError if a file cannot enter a
    package, or was changed after it was read."""
    made_from = provenance(source)
    notes: list[str] = []
    for benchmark in dict.fromkeys(result_set.benchmark for result_set in sets):
        implementations = folder / "benchmarks" / benchmark / "implementations"
        of_benchmark = [result_set for result_set in sets if result_set.benchmark == benchmark]
        files: dict[str, Path] = {}
        for name in dict.fromkeys(result.package_name for result in of_benchmark):
            files |= source_files(source, name)
        refuse_colliding(files)
        for place, file in files.items():
            refuse_name(place, file)
            copy(file, implementations / IMPLEMENTATION / place)
        for result in of_benchmark:
            _write_system(implementations / result.system, result, implementations / IMPLEMENTATION, made_from)
            results = folder / "results" / result.system / benchmark
            for record in result.records:
                copy(record.path, results / record.path.name, sha256=record.sha256)
            for file in result.power:
                copy(file, results / file.relative_to(result.folder))
        if added := uncommitted(source, files):
            notes.append(f"{source}: packaged, although git does not track them: {', '.join(added)}.")
    if (source / "LICENSE").is_file():
        copy(source / "LICENSE", folder / "LICENSE")
    else:
        notes.append(f"{source}: has no LICENSE; MLPerf's rules require a license compatible with Apache 2.")
    for result_set in sets:
        description = folder / "systems" / f"{result_set.system}.json"
        if not description.exists():  # shared by the benchmarks of one system
            _json(description, result_set.description)
    _text(folder / "README.md", package_docs.package_readme(submitter, sets, rules, demonstration, made_from))
    return list(dict.fromkeys(notes))


def _write_system(folder: Path, result: ResultFolder, source: Path, made_from: Mapping[str, Any]) -> None:
    """Write the settings, environment and scripts with which one system ran the packaged `source`."""
    environment = result.contents[result.paths[0].environment]
    write(folder / result.paths[0].environment.name, environment)
    if result.ledger is not None:
        write(folder / LEDGER, result.ledger)
    for run in result.paths:
        files = [run.config]
        if result.contents[run.environment] != environment:
            files.append(run.environment)
        if run.provenance in result.contents:
            files.append(run.provenance)
        for file in files:
            write(folder / "runs" / run.side.name / file.name, result.contents[file])
    modules = sorted((source / result.package_name.replace(".", "/")).glob("*.py"))
    _text(folder / "README.md", package_docs.system_readme(result, source, modules, made_from))
    installed = environment.decode(errors="replace")
    _text(folder / "setup.sh", package_scripts.setup_script(source, installed))
    _text(folder / "constraints.txt", package_scripts.constraints(installed))
    _text(folder / "init_datasets.sh", package_scripts.datasets_script(result))
    _text(folder / "run_and_time.sh", package_scripts.run_script(result))
    _json(folder / f"{result.system}_{IMPLEMENTATION}.json", package_docs.implementation_description(result, made_from))


def write_manifest(
    folder: Path,
    submitter: str,
    sets: Sequence[ResultFolder],
    rules: Ruleset,
    source: Path,
    official: OfficialVerdict,
    findings: Sequence[Finding] | None,
) -> None:
    """Write manifest.json: metadata, verdicts and the SHA-256 of every other file. `findings` are None if the strict
    checks were not run."""
    manifest = folder / MANIFEST
    manifest.unlink(missing_ok=True)
    levels = [finding.level for finding in findings or ()]
    _json(
        manifest,
        {
            "submitter": submitter,
            "demonstration": sets[0].score.demonstration,
            "verified": False,
            "notice": NOTICE,
            "ruleset": rules.name,
            "checked": {
                "by": official.checker,
                "tool": official.tool,
                "verdict": official.verdict,
                "own_round": official.own_round,
                "messages": list(official.messages),
            },
            "strict": {
                "by": "mlevents",
                "verdict": "not run" if findings is None else verdict(findings),
                **{f"{level}s": levels.count(level) for level in LEVELS},
            },
            "source": provenance(source),
            "runs": [package_docs.origin(result_set) for result_set in sets],
            "scores": [asdict(result_set.score) for result_set in sets],
            "files": digests(folder),
        },
    )


def _text(to: Path, text: str) -> None:
    write(to, text.encode())


def _json(to: Path, values: Mapping[str, Any]) -> None:
    _text(to, json.dumps(values, indent=2) + "\n")
