"""Check a whole submission folder <ORG>/{systems,results,benchmarks} against MLPerf's rules; of benchmarks/, LICENSE,
and README the code, documents and versions from which results can be reproduced."""

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from mlevents import keys
from mlevents.checks.convergence import SCALING
from mlevents.checks.log_check import usual_ruleset
from mlevents.event import Finding, Level, short
from mlevents.package_checker import result_folders
from mlevents.package_checker.files import MANIFEST, Listing, check_files, check_manifest, list_folder, read_json
from mlevents.package_checker.log_agreement import check_copies, check_logs, check_throughput
from mlevents.package_checker.result_folders import POWER, ResultSet, check_results, is_result, sets_in
from mlevents.package_checker.system_description import SystemDescription, description_findings, read_description
from mlevents.rounds import NO_RULES, RULESETS, Ruleset, default_ruleset, own_rules
from mlevents.rounds import ruleset as find_ruleset
from mlevents.summary import RunSummary

DEEPEST_SUBMISSION: Final = 3  # levels below a path: rounds, round, division
MOST_ALIKE: Final = 100  # findings of one level and rule that are kept
TOP: Final = ("systems", "results", "benchmarks")

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


def submission_folders(path: Path) -> list[Path]:
    """Return the submission folders at `path` or up to three levels below it, sorted; links below `path` are not
    followed.

    A submission folder holds results/, and systems/ or benchmarks/<benchmark>/implementations/."""
    paths: list[Path] = []
    waiting = [(path, 0)]
    while waiting:
        folder, level = waiting.pop()
        inside = _folders_in(folder)
        if "results" in inside and ("systems" in inside or "benchmarks" in inside and _has_implementations(folder)):
            paths.append(folder)
        elif level < DEEPEST_SUBMISSION:
            waiting.extend((folder / name, level + 1) for name in inside if not name.startswith("."))
    return sorted(paths)


def check_tree(folder: Path, summaries: Mapping[Path, RunSummary], ruleset: str | None) -> list[Finding]:
    """Return all findings about the submission in `folder` as a whole, without those of single logs and sets.
    `summaries`: the logs by path; every result_*.txt that is a readable log must be there. `ruleset`: such as
    "2.0.0"; None: each benchmark's default, as neither logs nor descriptions name their round. Raises ValueError for
    an unknown ruleset. Nothing is raised on the folder's content."""
    rules = None if ruleset is None else find_ruleset(ruleset)
    listing = list_folder(folder)
    of_path = {os.path.abspath(path): summary for path, summary in summaries.items()}
    sets = sets_in(listing)
    logs = {of.place: [of_path[name] for name in map(os.path.abspath, of.files) if name in of_path] for of in sets}
    descriptions = (entry for entry in listing.files("systems") if entry.name.endswith(".json"))
    described = {entry.name[:-5]: read_description(listing.root / entry.place) for entry in descriptions}
    first = {log.benchmark: log for of in reversed(sets) for log in logs[of.place] if log.benchmark == of.benchmark}
    known = {of.benchmark: _rules_of(of.benchmark, rules, first.get(of.benchmark)) for of in sets}
    findings = [*check_files(listing), *_top(listing), *_systems(listing, described, sets)]
    for name, system in described.items():
        asked = [known[result_set.benchmark] for result_set in sets if result_set.system == name]
        each = [known for known in asked if known is not None] or [rules or next(iter(RULESETS.values()))]
        findings += dict.fromkeys(finding for known in each for finding in description_findings(system, known))
    findings += _system_folders(listing, described)
    systems = frozenset({result_set.system for result_set in sets} | set(described))
    for result_set in sets:
        of_benchmark = known[result_set.benchmark]
        read = logs[result_set.place]
        description = described.get(result_set.system)
        findings += _benchmark_folder(listing, result_set, of_benchmark, rules)
        benchmark_rules = of_benchmark.benchmarks.get(result_set.benchmark) if of_benchmark else None
        findings += check_results(listing, result_set, read, benchmark_rules)
        findings += _tool_files(listing, result_set, read, description)
        findings += check_logs(listing.root, result_set.system, result_set.benchmark, read, description, systems)
        if description is not None and benchmark_rules is not None:
            findings += check_throughput(read, description, benchmark_rules)
    findings += check_copies(chain.from_iterable(logs.values()), listing.root)
    findings += check_documents(listing)
    systems_of = {name: [of.system for of in sets if of.benchmark == name] for name in known}
    findings += [*check_source(listing, systems_of), *check_manifest_source(listing)]
    root = os.path.abspath(listing.root)
    digests = {os.path.relpath(path, root).replace(os.sep, "/"): value.sha256 for path, value in of_path.items()}
    return _bounded([*findings, *check_manifest(listing, digests)])


def _bounded(findings: Sequence[Finding]) -> list[Finding]:
    """Return the first `MOST_ALIKE` findings of each level and rule, and the number of the others."""
    kept: list[Finding] = []
    seen: Counter[tuple[Level, str]] = Counter()
    for finding in findings:
        seen[finding.level, finding.rule] += 1
        if seen[finding.level, finding.rule] <= MOST_ALIKE:
            kept.append(finding)
    for (level, rule), count in seen.items():
        if count > MOST_ALIKE:
            kept.append(Finding(level=level, rule=rule, message=f"and {count - MOST_ALIKE} more of these, not shown"))
    return kept


def _folders_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as scan:
            return sorted((item.name for item in scan if item.is_dir(follow_symlinks=False)), reverse=True)
    except OSError:
        return []


def _has_implementations(folder: Path) -> bool:
    benchmarks = folder / "benchmarks"
    return any("implementations" in _folders_in(benchmarks / name) for name in _folders_in(benchmarks)[:100])


def _rules_of(benchmark: str, rules: Ruleset | None, log: RunSummary | None) -> Ruleset | None:
    """Return the rules for a benchmark's folder, by default those of its `log`; None if no round has the benchmark."""
    own = log.own_rules if log else None
    if rules is not None:
        return own_rules.in_force(rules, own)
    try:
        return own_rules.in_force(usual_ruleset(log) if log else default_ruleset(benchmark), own)
    except ValueError:
        return next((rules for rules in reversed(RULESETS.values()) if benchmark in _names_known(rules)), None)


def _names_known(rules: Ruleset) -> set[str]:
    """Return the benchmarks of a round: those with rules here, and those that its logs may name."""
    words = {word for key in rules.required if key.key == keys.SUBMISSION_BENCHMARK for word in key.vocabulary or ()}
    return words | set(rules.benchmarks)


def _top(listing: Listing) -> Iterator[Finding]:
    """Yield findings about the top-level folders."""
    there = {entry.name: entry.kind for entry in listing.inside("")}
    for name in ("systems", "results"):
        if there.get(name) != "folder":
            message = f"no folder {name}/, without which MLCommons' tools abort or find nothing"
            yield listing.finding("error", "tree-layout", message)
        elif listing.children.get(name) == ():
            yield listing.finding("error", "tree-layout", "empty, so there is nothing to submit", name)
    for entry in listing.inside(""):
        if entry.name == result_folders.PARAMETERS and entry.kind == "file":
            yield from result_folders.check_parameters(listing, entry.place)
        elif entry.kind == "folder" and entry.name not in TOP and entry.name.lower() in TOP:
            message = f"is not read by any tool: rename it to {entry.name.lower()}/"
            yield listing.finding("error", "tree-layout", message, entry.place)


def _systems(
    listing: Listing, described: Mapping[str, SystemDescription], sets: Sequence[ResultSet]
) -> Iterator[Finding]:
    """Yield findings unless systems/ and results/ name the same systems, each once."""
    with_results = {result_set.system for result_set in sets if result_set.files}
    for entry in listing.folders("results"):
        if entry.name not in described:
            close = difflib.get_close_matches(entry.name, described, n=1)
            hint = f" (there is {close[0]}.json)" if close else ""
            message = f"systems/{entry.name}.json is missing{hint}; MLCommons' package checker aborts without it"
            yield listing.finding("error", "system-without-description", message, entry.place)
    for name in sorted(set(described) - with_results):
        message = f"results/{name} has no result; a submission describes measured systems only: remove the description"
        yield listing.finding("warning", "system-without-results", message, f"systems/{name}.json")
    for entry in listing.inside("systems"):
        if not (entry.kind == "file" and entry.name.endswith(".json")) and entry.kind not in ("link", "other"):
            message = "not a system description (<system>.json), so no tool reads it; remove it"
            yield listing.finding("warning", "unknown-file", message, entry.place)
    shown_as: dict[str, str] = {}
    for name, system in described.items():
        title = system.text("system_name")
        other = shown_as.setdefault(title, name) if title else name
        if other != name:
            message = f"system_name {short(title)} is also that of systems/{other}.json; tables show both as one"
            yield system.finding("warning", "system-name", message, "system_name")


def _system_folders(listing: Listing, described: Mapping[str, SystemDescription]) -> Iterator[Finding]:
    """Yield findings about what is in results/ and results/<system>/ besides benchmarks' folders."""
    for entry in listing.files("results"):
        message = "no tool reads it: results/ has one folder per system; remove it"
        yield listing.finding("warning", "unknown-file", message, entry.place)
    reason = "a system's folder has one folder per benchmark"
    for system in listing.folders("results"):
        description = described.get(system.name)
        division = description.text("division") if description else None
        for entry in listing.files(system.place):
            yield from result_folders.check_other(listing, entry, reason, division)
        if not listing.folders(system.place):
            yield listing.finding("error", "results-missing", "no folder of a benchmark, so no results", system.place)


def _benchmark_folder(
    listing: Listing, results: ResultSet, ruleset: Ruleset | None, asked: Ruleset | None
) -> Iterator[Finding]:
    """Yield findings unless the folder is named as a benchmark of the round."""
    if ruleset is NO_RULES:
        return  # reported for each log
    if ruleset is not None and results.benchmark in _names_known(ruleset):
        if results.benchmark not in ruleset.benchmarks:
            what = f"number of results and target of {results.benchmark} in {ruleset.round}"
            yield listing.finding("note", "benchmark-folder", f"{what} are unknown, so not checked", results.place)
        return
    rounds = [asked] if asked else list(RULESETS.values())
    names = sorted({name for rules in rounds for name in _names_known(rules)})
    close = difflib.get_close_matches(results.benchmark, names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else f" (known: {', '.join(names)})"
    where = f"ruleset {asked.name}" if asked else "any known round"
    message = (
        f"{short(results.benchmark)} is not a benchmark of {where}{hint}; MLCommons' package checker skips such a "
        "folder and passes the package, and its summary aborts"
    )
    yield listing.finding("error", "benchmark-folder", message, results.place)


def _tool_files(
    listing: Listing, results: ResultSet, read: Sequence[RunSummary], description: SystemDescription | None
) -> Iterator[Finding]:
    """Yield findings about everything in a folder of results that is not a result."""
    logged = next((summary.division for summary in read if summary.division), None)
    division = (description.text("division") if description else None) or logged
    for entry in listing.inside(results.place):
        judged = is_result(entry.name) or entry.name == SCALING  # with its set
        of_power = entry.name == POWER and entry.kind == "folder"
        if not of_power and entry.kind not in ("link", "other") and not (entry.kind == "file" and judged):
            yield from result_folders.check_other(listing, entry, "results are files result_N.txt", division)


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
    `systems`: by benchmark, the systems that have results of it."""
    for benchmark, of_benchmark in systems.items():
        place = f"benchmarks/{benchmark}"
        entries = listing.files_below(place)
        if not entries:
            message = (
                f"no file in {place}; the rules require the code of the benchmark, the scripts that run it, and a "
                "description of each system and implementation"
            )
            where = "benchmarks" if "benchmarks" in listing.children else ""
            yield listing.finding("error", "source-missing", message, where)
            continue
        if not any(os.path.splitext(entry.name)[1].lower() in CODE_ENDINGS and entry.size for entry in entries):
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
