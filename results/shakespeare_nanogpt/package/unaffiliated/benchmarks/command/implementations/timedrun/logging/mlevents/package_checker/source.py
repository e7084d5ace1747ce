"""Check benchmarks/, LICENSE and README: code, documents and versions from which results can be reproduced."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mlevents.event import Finding
from mlevents.package_checker.files import MANIFEST, Listing, read_json

# submission_rules.adoc, "Training": the files required with <system>_<implementation>.json.
RULED_FILES: Final = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")
NEEDS_TEXT: Final = ("README.md", "run_and_time.sh")

CODE_ENDINGS: Final = frozenset(
    (".py", ".ipynb", ".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".jl", ".go", ".rs")
)
_VERSIONS: Final = re.compile(
    r"requirements.*\.txt|dockerfile.*|.*\.dockerfile|environment.*\.(txt|ya?ml)|conda.*\.ya?ml|provenance\.json"
    r"|pyproject\.toml|setup\.(py|cfg)|.*\.lock|freeze.*\.txt|versions?.*\.txt",
    re.IGNORECASE,
)


def check_documents(listing: Listing) -> Iterator[Finding]:
    """Yield findings about LICENSE and README at the top (submission_rules.adoc, "Licensing")."""
    names = {entry.name.lower() for entry in listing.files("") if entry.size}
    for wanted, meaning in (
        ("license", "code is submitted under terms compatible with Apache 2"),
        ("readme", "describe the submission"),
    ):
        if not any(name.startswith(wanted) for name in names):
            yield listing.finding("warning", "documents", f"no {wanted.upper()} at the top, or an empty one; {meaning}")


def check_source(listing: Listing, systems: Mapping[str, Iterable[str]]) -> Iterator[Finding]:
    """Yield findings about benchmarks/ for the results of each benchmark.

    Missing code is an error: "A submission must contain [...] Code that implements the benchmarks"
    (submission_rules.adoc, "Submission content"; no tool checks it). The layout of
    benchmarks/<benchmark>/implementations has rules too, but published packages differ, so violations are warnings.

    Args:
        systems: by benchmark, the systems that have results of it.
    """
    for benchmark, of_benchmark in systems.items():
        place = f"benchmarks/{benchmark}"
        entries = listing.files_below(place)
        if not entries:
            message = (
                f"no file in {place}; the rules require the code of the benchmark, the scripts that run it, and a "
                "description of each system and implementation"
            )
            yield listing.finding(
                "error", "source-missing", message, "benchmarks" if "benchmarks" in listing.children else ""
            )
            continue
        if not any(_ending(entry.name) in CODE_ENDINGS and entry.size for entry in entries):
            message = "no source code, from which the results could be reproduced"
            yield listing.finding("error", "source-missing", message, place)
        if not any(entry.kind == "folder" for entry in listing.inside(f"{place}/implementations")):
            message = "no folder in implementations/, where code and scripts belong"
            yield listing.finding("warning", "implementation-files", message, place)
        else:
            for system in of_benchmark:
                yield from _implementation(listing, f"{place}/implementations", system)
        if not any(_VERSIONS.fullmatch(entry.name) for entry in entries):
            message = (
                "no file with versions (requirements.txt, Dockerfile, provenance.json, ...); the rules require the "
                "version, tag or commit of every component that the results depend on"
            )
            yield listing.finding("warning", "provenance", message, place)


def check_manifest_source(listing: Listing) -> Iterator[Finding]:
    """Yield findings about a manifest.json whose "source" names no commit, or one with local changes."""
    content = read_json(listing, MANIFEST)
    source = content.get("source") if isinstance(content, dict) else None
    if not isinstance(source, dict):
        return
    commit = source.get("commit")
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        message = "no commit of the source, so the packaged version of the code is unknown"
        yield listing.finding("warning", "provenance", message, MANIFEST)
    elif source.get("dirty") is not False:
        message = f"the source has, or may have, changes that are not in commit {commit[:12]}"
        yield listing.finding("warning", "provenance", message, MANIFEST)


def _implementation(listing: Listing, place: str, system: str) -> Iterator[Finding]:
    """Yield findings about how one system ran the code: its description, README and scripts."""
    own = {entry.name: entry for entry in listing.files(f"{place}/{system}")}
    descriptions = [name for name in own if name.startswith(f"{system}_") and name.endswith(".json")]
    missing = [name for name in RULED_FILES if name not in own]
    if not descriptions:
        missing.insert(0, f"{system}_<implementation>.json")
    if missing:
        elsewhere = {entry.name: entry.place for entry in listing.files_below(place) if entry.name in missing}
        shared = [f"{name} is in {at.rpartition('/')[0]}" for name, at in sorted(elsewhere.items())]
        also = f" ({'; '.join(shared)})" if shared else ""
        message = f"{place}/{system} lacks {', '.join(missing)}{also}; the rules require them for each system"
        yield listing.finding("warning", "implementation-files", message, place)
    for name in descriptions:
        implementation = name.removeprefix(f"{system}_").removesuffix(".json")
        if implementation not in {entry.name for entry in listing.folders(place)}:
            message = f"describes the implementation {implementation!r}, which {place} lacks"
            yield listing.finding("warning", "implementation-files", message, own[name].place)
        elif not isinstance(read_json(listing, own[name].place), dict):
            message = "not a JSON object, so it does not describe the system and implementation"
            yield listing.finding("warning", "implementation-files", message, own[name].place)
    for name in NEEDS_TEXT:
        if name in own and not own[name].size:
            message = "is empty; it must explain how to reproduce the runs"
            yield listing.finding("warning", "implementation-files", message, own[name].place)


def _ending(name: str) -> str:
    return "." + name.rpartition(".")[2].lower()
