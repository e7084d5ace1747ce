"""Write the files of a package, its source among them, in the layout of MLPerf's submission rules, and the manifest."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from judging.checking.check_report import LEVELS, verdict
from judging.ground.atomic_file import is_inside
from judging.ground.errors import TimedrunError
from judging.ground.ledger import LEDGER
from judging.ground.result_files import digests
from judging.pages.score_table import NOTICE
from mlevents.event import Finding
from mlevents.mlcommons import OfficialVerdict
from mlevents.package_checker.files import MANIFEST
from mlevents.package_checker.tree import RULED_FILES
from mlevents.rounds import Ruleset
from timedrun.evidence.submission.packaging import package_docs, package_scripts
from timedrun.evidence.submission.packaging.package_scripts import IMPLEMENTATION
from timedrun.evidence.submission.packaging.result_folder import ResultFolder
from timedrun.evidence.submission.packaging.safe_files import (
    PackageError,
    content,
    copy,
    refuse_colliding,
    refuse_name,
    safe_name,
    write,
)
from timedrun.runner.provenance.source import git, provenance
from timedrun.runner.storage.benchmark_folders import nearby, package_places, put_here_last
from timedrun.runner.storage.method_sources import OWN_METHODS, digest_of, named_files, source_file, source_root
from timedrun.runner.storage.method_sources import source_files as source_files_of
from timedrun.runner.storage.source_copies import SOURCE

FOLDERS = ("timedrun", "logging", "mlevents", "judging", "scripts")
"""Folders that every benchmark needs; those of `logging` are at the top if timedrun was installed from a wheel."""

FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")

FOR_THE_REPOSITORY = (
    *("scripts/build_image.sh", "scripts/demo.sh", "scripts/test.sh", "scripts/test_pythons.sh"),
    *("scripts/race_commits.sh", "scripts/gitlab_race.yml", "scripts/site_hooks.py"),
)
"""Scripts that need what no package has: the Dockerfile, other benchmarks, the tests, commits, the site."""


def write_tree(
    folder: Path, sets: Sequence[ResultFolder], rules: Ruleset, source: Path, *, models: bool = False
) -> list[str]:
    """Write everything but the manifest, with kept models if `models`; return notes for the submitter. Raise
    PackageError if a file cannot enter a package, or was changed after it was read."""
    made_from = provenance(source)
    notes: list[str] = []
    tracked = {*_listed(source)}
    for benchmark in dict.fromkeys(result_set.benchmark for result_set in sets):
        implementations = folder / "benchmarks" / benchmark / "implementations"
        of_benchmark = [result_set for result_set in sets if result_set.benchmark == benchmark]
        external = of_benchmark[0].is_external
        code = implementations / (source.name if external else IMPLEMENTATION)
        files: dict[str, Path] = _without_links(dict(_below(source, (".",), (), left_out=()))) if external else {}
        for name in dict.fromkeys(None if of.is_command else of.package_name for of in of_benchmark if not external):
            files |= source_files(source, name)
        for result in of_benchmark:
            files |= method_files(result, files)
        refuse_colliding(files)
        for place, file in files.items():
            refuse_name(place, file)
            copy(file, code / place)
        for result in of_benchmark:
            _write_system(implementations / result.system, result, code, made_from, source)
            if models:
                _write_models(implementations / result.system / "runs", result)
            results = folder / "results" / result.system / benchmark
            for record in result.records:
                copy(record.path, results / record.path.name, sha256=record.sha256)
            for file in result.power:
                copy(file, results / file.relative_to(result.folder))
        added = sorted(place for place, file in files.items() if file == source / place and place not in tracked)
        if tracked and added:
            notes.append(f"{source}: packaged, although git does not track them: {', '.join(added)}.")
    if (source / "LICENSE").is_file():
        copy(source / "LICENSE", folder / "LICENSE")
    else:
        notes.append(f"{source}: has no LICENSE; MLPerf's rules require a license compatible with Apache 2.")
    for result_set in sets:
        description = folder / "systems" / f"{result_set.system}.json"
        if not description.exists():  # shared by the benchmarks of one system
            _json(description, result_set.description)
    implementation = source.name if sets[0].is_external else IMPLEMENTATION
    _text(folder / "README.md", package_docs.package_readme(sets, rules, made_from, implementation))
    return list(dict.fromkeys(notes))


def _write_models(folder: Path, result: ResultFolder) -> None:
    """Write the models that the runs of one system kept, as their provenance has them."""
    kept = {run: files for run, of in zip(result.paths, result.provenances, strict=True) if (files := of.get("model"))}
    if not kept:
        raise PackageError(f"{result.folder}: no run kept its model; leave out --models, or run with --keep-model.")
    for run, files in kept.items():
        for name, sha256 in files.items():
            refuse_name(name, run.provenance)
            if not is_inside(name):
                raise PackageError(f"{run.provenance}: {name} is no file of the kept model.")
            copy(run.model / name, folder / run.side.name / run.model.name / name, sha256=sha256)


def _write_system(
    folder: Path, result: ResultFolder, source: Path, made_from: Mapping[str, Any], original: Path
) -> None:
    """Write the settings, environment and scripts with which one system ran the packaged `source`."""
    described = f"{result.system}_{source.name}.json"
    if result.is_external:
        for name in RULED_FILES:
            copy(ruled_file(original, result.system, name), folder / name)
        if (own := ruled_file(original, result.system, described)).is_file():
            copy(own, folder / described)
        else:
            _json(folder / described, package_docs.implementation_description(result, made_from, source.name))
        return
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
    for name, raw in result.source.items():
        write(folder / SOURCE / name, raw)
    for name, text in package_scripts.scripts(result, source, environment.decode(errors="replace")).items():
        _text(folder / name, text)
    _text(folder / "README.md", package_docs.system_readme(result, made_from))
    _json(folder / described, package_docs.implementation_description(result, made_from, source.name))


def write_manifest(
    folder: Path,
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
            "submitter": sets[0].submitter,
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


def ruled_file(code: Path, system: str, name: str) -> Path:
    """Return the file of a trainer's `code` that MLPerf's rules require for `system`: its own, or else that of all."""
    return own if (own := code / system / name).is_file() else code / name


def missing_files(code: Path | None, sets: Sequence[ResultFolder]) -> list[str]:
    """Return what the rules require for each system of another trainer and its folder `code` lacks; raise PackageError
    if the folder's name cannot be an implementation's."""
    if code is None:
        return [
            f"code: the folder of the trainer's code, with {', '.join(RULED_FILES)}, for all systems or in <system>/"
        ]
    safe_name(code.name, "the name of the code's folder")
    files = [(result.system, name) for result in sets for name in RULED_FILES]
    return [
        f"code: {code / system / name}, or {code / name} for all systems"
        for system, name in files
        if not ruled_file(code, system, name).is_file()
    ]


def source_files(source: Path, benchmark: str | None) -> dict[str, Path]:
    """Return the files of timedrun and of `benchmark`'s top-level package, if any, by path in the package, sorted.

    These are the files that git tracks below `source`, and Python files that it neither tracks nor ignores, since runs
    may have imported them; outside of git, all files except hidden ones and caches. A benchmark package from elsewhere
    is taken from the import path or the working directory.

    Raise TimedrunError if there is no package `benchmark` (an import name), or the source holds a symbolic link.
    """
    place = (benchmark or FOLDERS[0]).partition(".")[0]  # a nested benchmark imports modules of its parents
    files = dict(_below(source, (*FOLDERS, place), FILES))
    if benchmark and not any(name.startswith(f"{place}/") for name in files):
        files |= dict(_below(_import_root(source, benchmark), (place,), ()))
    return _without_links(files)


def _without_links(files: Mapping[str, Path]) -> dict[str, Path]:
    for name, file in files.items():
        folders = [file.parents[level] for level in range(name.count("/"))]
        if link := next((path for path in (file, *folders) if path.is_symlink()), None):
            raise TimedrunError(f"{link}: the source holds a symbolic link ({name}); a package may contain only files.")
    return dict(sorted(files.items()))


def method_files(result: ResultFolder, others: Mapping[str, Path]) -> dict[str, Path]:
    """Return the source of each method of the runs that is not among `others`, by its path in the package: its files
    and, for one in a package, all of that. Nothing is imported.

    Raise PackageError unless it is on the import path or in the working directory, as it was in the runs, and has
    another name than what is packaged anyway.
    """
    theirs = {file.resolve() for file in others.values()}
    tops = {*FOLDERS, *(name.partition("/")[0] for name in others)}
    files: dict[str, Path] = {}
    for reference, sha256 in result.own_methods.items():
        module = reference.partition(":")[0]
        top, *below = module.split(".")
        put_here_last()
        path = source_file(module)
        if path is None:
            raise PackageError(
                f"{result.folder}: its method {reference} is neither on the import path nor in the working directory,"
                " so its source cannot be packaged. Package where the runs were made."
            )
        source = source_files_of(module, path)
        if digest_of(source, content) != sha256:
            raise PackageError(
                f"{named_files(source)} was changed after the runs in {result.folder} (they recorded SHA-256 {sha256}),"
                " so the package would hold other code. Restore it, or run again."
            )
        if path.resolve() in theirs:
            continue
        if top in tops:
            raise PackageError(
                f"{path}, the source of {reference}, is not among the files of '{top}' that are packaged anyway, beside"
                " which none of that name could be imported. Rename its module, or let git track it, and run again."
            )
        packaged = bool(below) or path.stem == "__init__"
        root = source_root(module, path)
        found = dict(_below(root, (top,), ())) if packaged else {}
        found |= {file.relative_to(root).as_posix(): file for file in source.values() if file.resolve() not in theirs}
        files |= {f"{OWN_METHODS}/{name}": file for name, file in found.items()}
    return files


def _below(
    root: Path, folders: tuple[str, ...], files: tuple[str, ...], left_out: tuple[str, ...] = FOR_THE_REPOSITORY
) -> Iterator[tuple[str, Path]]:
    names = _listed(root, "--", *folders, *files)
    if any(name.endswith(".py") for name in names):
        others = _listed(root, "--others", "--exclude-standard", "--", *folders)
        names += [name for name in others if name.endswith(".py")]
    else:  # git lists no code of a tree that was never committed: take all files
        paths = [path for folder in folders for path in (root / folder, *(root / folder).rglob("*"))]
        names = [path.relative_to(root).as_posix() for path in paths if path.is_symlink() or not path.is_dir()]
        names += [name for name in files if (root / name).is_file()]
    for name in names:
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))
        if not (hidden or name in left_out or name.endswith((".pyc", ".draft"))) and os.path.lexists(root / name):
            yield name, root / name


def _listed(root: Path, *arguments: str) -> list[str]:
    return [name for name in (git(root, "ls-files", "-z", *arguments) or "").split("\0") if name]


def _import_root(source: Path, benchmark: str) -> Path:
    """Return the folder on the import path, or the working directory, that holds `benchmark`, without importing it."""
    places = [place for place in package_places(benchmark) or () if place.is_dir()]
    if here := nearby().get(benchmark):
        places.append(here)
    if not places:
        raise TimedrunError(
            f"{source} has no folder {benchmark.replace('.', '/')} and no package {benchmark} is installed: its source "
            "cannot be packaged. Package on the machine of the runs."
        )
    return places[0].resolve().parents[benchmark.count(".")]
