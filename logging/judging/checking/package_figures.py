"""Compare the values that the README and the manifest of a package state with its logs."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from judging.ground.file_kind import read_text
from judging.pages.score_table import distinct, table
from judging.scoring.score import Score, score_set
from mlevents.event import Finding, is_number, listed, short
from mlevents.package_checker.files import MANIFEST, Listing, list_folder, read_json
from mlevents.package_checker.result_folders import sets_in
from mlevents.rounds import RULESETS
from mlevents.summary import RunSummary

FIGURES: Final = (
    *("dataset", "demonstration", "division", "config_name", "target", "files", "runs", "runs_needed", "score_minutes"),
    *("mean", "median", "deviation", "interval", "progress", "quality"),
)
"""Fields of a score in a manifest that the logs determine."""


def check_figures(folder: Path, summaries: Mapping[Path, RunSummary], ruleset: str) -> list[Finding]:
    """Return an error for each value in manifest.json or a README.md of the package in `folder` that its logs do not
    confirm; none for a package of another tool.

    Logs with a config digest are timedrun's, whose `package` always writes a manifest: without one, it was removed (an
    error if timedrun's source is packaged too), or the package was assembled by hand (a warning). `ruleset`: for a
    manifest that names none."""
    listing = list_folder(folder)
    manifest = read_json(listing, MANIFEST)
    if not isinstance(manifest, dict) or not {"scores", "runs"} <= manifest.keys():
        if not any(log.config_digest for log in summaries.values()):
            return []
        ours = any(re.fullmatch(r"benchmarks/[^/]+/implementations/timedrun", place) for place in listing.children)
        message = f"no {MANIFEST} with scores and runs, which `timedrun package` writes: no value could be compared"
        return [listing.finding("error" if ours else "warning", "manifest", message)]
    stated, origins = (_entries(manifest[key]) if isinstance(manifest[key], list) else {} for key in ("scores", "runs"))
    findings: list[Finding] = []
    scores: list[Score] = []
    own: list[Score] = []  # of timedrun's runs; the README of another trainer's system is its submitter's
    of_path = {os.path.abspath(path): summary for path, summary in summaries.items()}
    for result_set in sets_in(listing):
        logs = [of_path[path] for file in result_set.files if (path := os.path.abspath(file)) in of_path]
        if not logs:
            continue
        name, named = (result_set.system, result_set.benchmark), str(manifest.get("ruleset"))
        score = score_set(logs, (listing.root.name, *name), ruleset=named if named in RULESETS else ruleset)
        scores.append(score)
        actual = json.loads(json.dumps(asdict(score)))
        expected = {key: actual[key] for key in FIGURES}
        for entry in stated.pop(name, [{}]):
            findings += _differences(listing, "scores", name, entry, expected)
        digest = next((log.config_digest for log in logs if log.config_digest), None)
        if digest:
            own.append(score)
        origin = {"results": [file.name for file in result_set.files], "config_digest": digest}
        for entry in origins.pop(name, [{}]):
            findings += _differences(listing, "runs", name, entry, origin)
    if others := sorted({*stated, *origins}):
        shown = "; ".join(f"{short(system)}, {short(benchmark)}" for system, benchmark in others[:5])
        message = f"states values of {len(others)} sets whose logs are not in results/: {shown}"
        findings.append(listing.finding("error", "figures", message, MANIFEST))
    return [*findings, *_readmes(listing, scores, own)]


def _entries(stated: list[Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the entries by system and benchmark: each of several on one set is compared."""
    entries: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in stated:
        if isinstance(entry, dict):
            entries.setdefault((str(entry.get("system")), str(entry.get("benchmark"))), []).append(entry)
    return entries


def _differences(
    listing: Listing, key: str, name: tuple[str, str], stated: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[Finding]:
    wrong = [field for field in expected if field not in stated or not _same(stated[field], expected[field])]
    runs, logged, changed = stated.get("runs"), expected.get("runs", []), []
    if isinstance(runs, list) and len(runs) == len(logged):
        changed = [file for file, was, now in zip(expected["files"], runs, logged, strict=True) if not _same(was, now)]
    for field in sorted(wrong, key=lambda field: field != "runs"):
        said = short(stated[field]) if field in stated else "missing"
        message = f'{field} of {" ".join(name)} in "{key}" is {said}, but its logs yield {short(expected[field])}'
        if 0 < len(changed) < len(logged) and len(wrong) > 1:  # one log that was changed, not each of its figures
            others = ", ".join(other for other in wrong if other != "runs")
            message = f"{len(wrong)} figures follow from {listed(changed, 3)}, whose time is another: {message}"
            yield listing.finding("error", "figures", f"{message}, and {others} differ with it", MANIFEST)
            return
        yield listing.finding("error", "figures", message, MANIFEST)


def _readmes(listing: Listing, scores: list[Score], own: list[Score]) -> Iterator[Finding]:
    """Yield an error for each README whose table of scores, its first quoted block, differs from the logs."""
    wanted = {"README.md": scores}
    for score in own:
        wanted[f"benchmarks/{score.benchmark}/implementations/{score.system}/README.md"] = [score]
    for place, of_logs in wanted.items():
        if place not in listing.entries:
            continue  # `check_manifest` reports it
        try:
            text = read_text(listing.root / place)
        except (OSError, ValueError) as error:
            yield listing.finding("error", "figures", f"cannot be read ({error}); its scores were not checked", place)
            continue
        block = "".join(text.split("```")[1:2])
        names = [*distinct([score.system for score in of_logs]), *distinct([score.benchmark for score in of_logs])]
        said, given = _figures(block, names), _figures(table(of_logs), names)
        if said != given:
            lost, new = (", ".join(sorted(set(one) - set(other))) for one, other in ((said, given), (given, said)))
            message = f"its table of scores has {lost or 'other lines'}, but the logs yield {new or 'no such line'}"
            yield listing.finding("error", "figures", message, place)


def _figures(text: str, names: Iterable[str]) -> list[str]:
    """Return those of `names` and the numbers of each line of `text` that has any, whatever its other words."""
    figure = rf"(?<![\w.-])(?:{'|'.join(map(re.escape, names))}|\d+(?:\.\d+)?)(?![\w.-])"
    return sorted(filter(None, (" ".join(re.findall(figure, line)) for line in text.splitlines())))


def _same(stated: object, given: object) -> bool:
    """Return True if two JSON values are equal; numbers up to the rounding of a sum in another order."""
    if isinstance(stated, list) and isinstance(given, list):
        return len(stated) == len(given) and all(map(_same, stated, given))
    if is_number(stated) and is_number(given):
        return math.isclose(stated, given, rel_tol=1e-9)
    return type(stated) is type(given) and stated == given
