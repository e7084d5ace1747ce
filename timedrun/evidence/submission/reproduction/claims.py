"""Claimed scores, qualities and ratios, read from a package's manifest or a list of claims."""

import json
import os
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, Literal

from judging.ground.errors import TimedrunError
from judging.ground.file_kind import read_text
from judging.ground.result_files import digests
from mlevents.event import json_fault
from mlevents.package_checker.files import MANIFEST

RATIOS: Final = ("minutes", "samples", "samples_per_second")
"""Quantities whose ratio can be claimed: of a score, of its mean samples, and of these per second of all time."""
MAX_DECIMALS: Final = 9  # decimals that are compared: further ones depend on the order of a floating-point sum
LARGEST: Final = Decimal("1e12")  # above any minutes, quality or ratio
Change = Literal["changed", "missing", "added"]


class ClaimError(TimedrunError):
    """Error raised for unreadable claims; the message names the file, the entry and the problem."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claimed values of one set of runs, as text, whose digits determine the precision. None: not claimed.

    `minutes` is the score, `quality` the geometric mean of the final quality, `ratio` the score of the system
    `ratio_to` on the same benchmark divided by this one's; `ratio_to` alone is computed but not compared. It is a
    system of the same submitter, or SUBMITTER/SYSTEM. `ratio_of` is the quantity of the ratio, one of `RATIOS`.
    `scored` is False if a manifest says that the set has no score.
    """

    system: str
    benchmark: str
    submitter: str | None = None
    minutes: str | None = None
    quality: str | None = None
    ratio: str | None = None
    ratio_to: str | None = None
    ratio_of: str = "minutes"
    scored: bool = True
    source: str = ""
    note: str = ""
    round: str = ""
    entry: str = ""  # MLCommons' number of the result, such as 2.1-2096

    @property
    def ratio_name(self) -> str:
        """Name of the ratio, as "ratio to <system>" or "ratio of samples to <system>"."""
        of = "" if self.ratio_of == "minutes" else f" of {self.ratio_of.replace('_', ' ')}"
        return f"ratio{of} to {self.ratio_to}"

    def names(self, submitter: str, system: str, benchmark: str) -> bool:
        """Return True if this is a claim about that set."""
        return (self.system, self.benchmark) == (system, benchmark) and self.submitter in (None, submitter)


@dataclass(frozen=True)
class Package:
    """Manifest of a package on disk: its claims, and the SHA-256 of each file when it was made."""

    folder: Path
    claims: tuple[Claim, ...]
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class ChangedFile:
    """File of a package that differs from its manifest."""

    package: str
    file: str
    change: Change


def read_claims(path: Path) -> list[Claim]:
    """Read the claims in `path`, a JSON list of objects with Claim's fields; `system` and `benchmark` are required, and
    at least one of minutes, quality, ratio and ratio_to. Raise ClaimError if an entry is not a claim."""
    entries = _read(path)
    if not isinstance(entries, list) or not entries:
        raise ClaimError(f"{path}: not a list of claims [{{submitter, system, ...}}, ...]; nothing was compared.")
    known = [field.name for field in fields(Claim) if field.name != "scored"]
    claims = []
    for number, entry in enumerate(entries, 1):
        where = f"{path}: claim {number}"
        if not isinstance(entry, dict) or any(not isinstance(value, str) for value in entry.values()):
            raise ClaimError(f"{where} is not an object of texts and numbers; nothing was compared.")
        if unknown := sorted(entry.keys() - set(known)):
            raise ClaimError(
                f"{where} has unknown fields {', '.join(unknown)}; valid ones are {', '.join(known)}. Nothing was"
                " compared."
            )
        if missing := [name for name in ("system", "benchmark") if not entry.get(name)]:
            raise ClaimError(f"{where} has no {' and no '.join(missing)}; nothing was compared.")
        if not {"minutes", "quality", "ratio", "ratio_to"} & entry.keys():
            raise ClaimError(f"{where} claims nothing: add minutes, quality, ratio or ratio_to.")
        if "ratio" in entry and "ratio_to" not in entry:
            raise ClaimError(f"{where} has a ratio but no ratio_to, the system of the other score.")
        if entry.get("ratio_of", "minutes") not in RATIOS:
            raise ClaimError(f"{where} has ratio_of {entry['ratio_of']!r}; valid ones are {', '.join(RATIOS)}.")
        for name in ("minutes", "quality", "ratio"):
            if name in entry:
                decimals(entry[name], f"{where}: {name}")
        claims.append(Claim(**entry))
    return claims


def packages(folder: Path) -> list[Package]:
    """Find every package in or below `folder`: a folder whose manifest.json lists scores and files. A package inside
    another is part of the outer one's content. Raise ClaimError if the scores of a manifest are malformed, or the
    manifest of a submission is unreadable."""
    items = []
    for parent, folders, names in os.walk(folder):
        if MANIFEST in names and (package := _package(Path(parent))):
            items.append(package)
            folders.clear()
        folders.sort()
    return items


def changed_files(package: Package) -> list[ChangedFile]:
    """Return the files of `package` that differ from its manifest, which does not list itself."""
    there = {name: digest for name, digest in digests(package.folder).items() if name != MANIFEST}
    changes: list[ChangedFile] = []
    for name in sorted(there.keys() | package.files.keys()):
        now, then = there.get(name), package.files.get(name)
        if now != then or not now:  # "" is a link, which no package holds
            change: Change = "missing" if now is None else "added" if then is None else "changed"
            changes.append(ChangedFile(package=package.folder.name, file=name, change=change))
    return changes


def decimals(figure: str, where: str) -> int:
    """Return the number of decimals of `figure`, at most MAX_DECIMALS; negative for "1e3". Raise ClaimError, which
    begins with `where`, if it is not a finite number."""
    try:
        exponent = Decimal(figure).as_tuple().exponent
    except InvalidOperation:
        exponent = "n"
    if not isinstance(exponent, int) or len(figure) > 40 or abs(Decimal(figure)) >= LARGEST:
        raise ClaimError(f"{where} is {figure[:60]!r}, not a number; nothing was compared.")
    return min(-exponent, MAX_DECIMALS)


def _package(folder: Path) -> Package | None:
    where = f"{folder / MANIFEST}"
    try:
        manifest = _read(folder / MANIFEST)
        if not isinstance(manifest, dict):
            raise ClaimError(f"{where} is not a JSON object; nothing was compared.")
    except ClaimError:
        if (folder / "systems").is_dir() and (folder / "results").is_dir():
            raise  # a submission's claims are unreadable, which differs from no claims
        return None  # another program's file
    if not {"scores", "files"} <= manifest.keys():
        return None
    scores, files = manifest["scores"], manifest["files"]
    if not isinstance(scores, list) or not all(isinstance(score, dict) for score in scores):
        raise ClaimError(f"{where}: 'scores' is not a list of objects; nothing was compared.")
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise ClaimError(f"{where}: 'files' does not map paths to their SHA-256; nothing was compared.")
    return Package(folder, tuple(_claim(score, where, folder.resolve().name) for score in scores), files)


def _claim(score: dict[str, Any], where: str, folder: str) -> Claim:
    named = [score.get(name) for name in ("submitter", "system", "benchmark")]
    figures = [score.get(name) for name in ("score_minutes", "quality")]
    if not all(isinstance(value, str) for value in named) or any(not isinstance(v, str | None) for v in figures):
        raise ClaimError(f"{where}: a score has fields of wrong types; nothing was compared.")
    for figure in figures:
        if figure is not None:
            decimals(figure, f"{where}: a figure")
    submitter, system, benchmark = map(str, named)
    minutes, quality = figures
    return Claim(
        submitter=folder,  # as for its sets of logs: a package may have been unpacked under another name
        system=system,
        benchmark=benchmark,
        minutes=minutes,
        quality=quality,
        scored=minutes is not None,
        source=MANIFEST,
        note="" if submitter == folder else f"the manifest's submitter is {submitter}, the folder is {folder}",
    )


def _read(path: Path) -> Any:
    """Read the JSON in `path` with numbers as text, which keeps their precision."""
    try:
        return json.loads(read_text(path), parse_float=str, parse_int=str, parse_constant=str)
    except (OSError, ValueError, RecursionError) as error:
        raise ClaimError(f"{path}: cannot be read as JSON ({json_fault(error)}); nothing was compared.") from None
