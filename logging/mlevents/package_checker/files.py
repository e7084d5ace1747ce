"""List the entries of a submission folder without following links, and check names, kinds, sizes and the manifest."""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from mlevents.event import Finding, Level, listed, short
from mlevents.terminal_escape import printable

Kind = Literal["file", "folder", "link", "other"]

LARGEST_FILE: Final = 50 * 1024 * 1024  # bytes; repo_checker.py of mlperf-logging rejects larger files, as git hosts do

MANIFEST: Final = "manifest.json"
LARGEST_JSON: Final = 32 << 20  # bytes of the largest manifest that is read
NAMED: Final = 5  # names in a finding about many entries


@dataclass(frozen=True)
class Entry:
    """One entry by its path relative to the submission folder, with "/" as separator."""

    place: str
    kind: Kind
    size: int = 0  # bytes of a file

    @property
    def name(self) -> str:
        return self.place.rpartition("/")[2]


@dataclass(frozen=True)
class Listing:
    """The sorted entries below `root`; `problems` are findings about folders that could not be listed, of which
    `children` has no key."""

    root: Path
    entries: Mapping[str, Entry]
    children: Mapping[str, tuple[Entry, ...]]
    problems: tuple[Finding, ...]

    def inside(self, place: str) -> tuple[Entry, ...]:
        """Return the entries directly in the folder `place`."""
        return self.children.get(place, ())

    def folders(self, place: str) -> list[Entry]:
        """Return the folders directly in `place`."""
        return [entry for entry in self.inside(place) if entry.kind == "folder"]

    def files(self, place: str) -> list[Entry]:
        """Return the regular files directly in `place`."""
        return [entry for entry in self.inside(place) if entry.kind == "file"]

    def files_below(self, place: str) -> list[Entry]:
        """Return the regular files anywhere below the folder `place`."""
        below = f"{place}/"
        return [entry for entry in self.entries.values() if entry.kind == "file" and entry.place.startswith(below)]

    def finding(self, level: Level, rule: str, message: str, place: str = "", line: int | None = None) -> Finding:
        """Return a finding about the entry at `place`."""
        path = shown(self.root / place) if place else shown(self.root)
        return Finding(level=level, rule=rule, message=printable(message), line=line, path=path)


def shown(path: Path) -> str:
    """Return `path` escaped for a terminal, on one line."""
    return printable(str(path))


def list_folder(root: Path) -> Listing:
    """List the entries below `root`, without following links. Raises nothing."""
    entries: dict[str, Entry] = {}
    children: dict[str, tuple[Entry, ...]] = {}
    problems: list[Finding] = []
    waiting = [""]
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(root / place) as scan:
                inside = sorted((_entry(item, place) for item in scan), key=lambda entry: entry.place)
        except OSError as error:
            message = f"cannot be listed ({error.strerror}); its content was not checked"
            problems.append(Finding(level="error", rule="unreadable", message=message, path=shown(root / place)))
            continue
        children[place] = tuple(inside)
        entries.update((entry.place, entry) for entry in inside)
        waiting.extend(entry.place for entry in reversed(inside) if entry.kind == "folder")
    return Listing(root, dict(sorted(entries.items())), children, tuple(problems))


def _entry(item: os.DirEntry[str], parent: str) -> Entry:
    place = f"{parent}/{item.name}" if parent else item.name
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:
        return Entry(place, "other")
    if stat.S_ISLNK(status.st_mode):
        return Entry(place, "link")
    if stat.S_ISDIR(status.st_mode):
        return Entry(place, "folder")
    return Entry(place, "file", status.st_size) if stat.S_ISREG(status.st_mode) else Entry(place, "other")


def check_files(listing: Listing) -> list[Finding]:
    """Return findings about names, sizes, kinds and links: those of mlperf-logging's repo_checker.py and more."""
    entries = listing.entries.values()
    findings = list(listing.problems)

    def about(level: Level, rule: str, wrong: Iterable[Entry], message: str) -> None:
        if places := [entry.place for entry in wrong]:
            findings.append(listing.finding(level, rule, f"{_names(places)}: {message}", places[0]))

    unprintable = [entry for entry in entries if not entry.name.isprintable()]
    about("error", "file-name", unprintable, "name with a control character or invalid UTF-8; rename it")
    spaced = [entry for entry in entries if " " in entry.name]
    about("warning", "file-name", spaced, "name with a space, which MLCommons' repository checker rejects; rename it")
    hidden = [entry for entry in entries if entry.name.startswith(".")]
    message = "name with a leading dot, which MLCommons' repository checker rejects; leave it out"
    about("warning", "file-name", hidden, message)
    folded: dict[str, Entry] = {}
    alike = [entry for entry in entries if folded.setdefault(entry.place.casefold(), entry) is not entry]
    message = "differs from another name only in case; on some file systems both are one file"
    about("warning", "file-name", alike, message)
    large = [entry for entry in entries if entry.size > LARGEST_FILE]
    message = "larger than 50 MiB, which MLCommons' repository checker rejects; leave it out and link to it"
    about("error", "file-size", large, message)
    special = [entry for entry in entries if entry.kind == "other"]
    message = "not a file, folder or link (pipe, socket, device, or vanished) and was not opened; remove it"
    about("error", "special-file", special, message)
    files = [entry for entry in entries if entry.kind == "file"]
    locked = [entry for entry in files if not os.access(listing.root / entry.place, os.R_OK)]
    about("error", "unreadable", locked, "is not readable and was not checked; add read permission")
    return findings + [_link(listing, entry) for entry in entries if entry.kind == "link"]


def _link(listing: Listing, entry: Entry) -> Finding:
    path, root = listing.root / entry.place, os.path.realpath(listing.root)
    try:
        target = os.readlink(path)
        end = os.path.realpath(path)
        exists = os.path.exists(path)
    except (OSError, ValueError):
        target, end, exists = "", root, False
    inside = end == root or end.startswith(root + os.sep)
    level: Level = "error"
    if os.path.isabs(target) or not inside:
        message = f"link out of the submission, to {short(target)}; replace it with the file"
    elif not exists:
        message = f"broken or circular link to {short(target)}; remove it"
    elif entry.place.startswith(("results/", "systems/")):
        message = f"link to {short(target)}; results and systems must be files: replace it with the file"
    else:
        level = "warning"
        message = f"link to {short(target)}, broken for MLCommons' repository checker; replace it with the file"
    return listing.finding(level, "link", message, entry.place)


def check_manifest(listing: Listing, digests: Mapping[str, str]) -> list[Finding]:
    """Return findings about files that differ from those in manifest.json; none without a manifest. `digests`: SHA-256
    of files that were read before, by place."""
    if MANIFEST not in listing.entries:
        return []
    content = read_json(listing, MANIFEST)
    listed = content.get("files") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(digest, str) for digest in listed.values()):
        message = 'not a JSON object with the SHA-256 of each file under "files"; no file was compared'
        return [listing.finding("error", "manifest", message, MANIFEST)]
    findings = []
    present = {place for place, entry in listing.entries.items() if entry.kind != "folder"} - {MANIFEST}
    if missing := sorted(set(listed) - present):
        message = f"{_names(missing)}: listed but missing, so the package is incomplete"
        findings.append(listing.finding("error", "manifest", message, MANIFEST))
    if extra := sorted(present - set(listed)):
        message = f"{_names(extra)}: not in {MANIFEST}, so added after packaging"
        findings.append(listing.finding("error", "manifest", message, extra[0]))
    for place in sorted(present & set(listed)):
        entry = listing.entries[place]
        if entry.kind == "file" and listed[place] != (digests.get(place) or _sha256(listing.root / place)):
            message = f"SHA-256 differs from {MANIFEST}, so the file was changed after packaging"
            findings.append(listing.finding("error", "manifest", message, place))
    return findings


def read_json(listing: Listing, place: str) -> object:
    """Return the content of the JSON file at `place`; None if it is not a file or not valid JSON."""
    entry = listing.entries.get(place)
    if entry is None or entry.kind != "file" or entry.size > LARGEST_JSON:
        return None
    try:
        content: object = json.loads((listing.root / place).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _names(places: list[str]) -> str:
    return listed(
        [place if place.isprintable() and len(place) <= 200 else short(place, 200) for place in places], NAMED
    )
