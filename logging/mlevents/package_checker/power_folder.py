"""Check results/<system>/<benchmark>/power: one folder of node and switch readings per result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from mlevents.checks.finding import Finding
from mlevents.package_checker.files import Listing

POWER: Final = "power"


def check_power_folder(listing: Listing, place: str, results: Sequence[str]) -> Iterator[Finding]:
    """Yield findings unless every result has a folder, with the same number of files, numbered from 0.

    power_measurement.adoc and submission_rules.adoc, "Training"; power_checker.py of mlperf-logging.

    Args:
        place: the folder of the results, relative to the submission.
        results: names of the result files without suffix.
    """
    power = f"{place}/{POWER}"
    folders = {entry.name: entry.place for entry in listing.folders(power)}
    counts: dict[str, tuple[int, int]] = {}
    for name in results:
        if name not in folders:
            message = f"no folder {name} for {name}.txt; MLCommons' summary aborts unless each run has one"
            yield listing.finding("error", "power-folder", message, power)
        else:
            nodes, switches = (_numbers(listing, folders[name], kind) for kind in ("node", "sw"))
            counts[name] = len(nodes), len(switches)
            for kind, numbers in (("node", nodes), ("sw", switches)):
                if sorted(numbers) != list(range(len(numbers))):
                    message = f"its files {kind}_N.txt are numbered {sorted(numbers)}, not 0 to {len(numbers) - 1}"
                    yield listing.finding("error", "power-files", message, folders[name])
            if not nodes:
                yield listing.finding("error", "power-files", "no node_0.txt, so no readings", folders[name])
    if counts:
        usual = Counter(counts.values()).most_common(1)[0][0]
        for name, found in counts.items():
            if found != usual:
                message = (
                    f"{found[0]} node and {found[1]} switch files, but {usual[0]} and {usual[1]} in the other runs; "
                    "all runs of a system have the same nodes"
                )
                yield listing.finding("error", "power-files", message, folders[name])
    for entry in listing.inside(power):
        if entry.name not in results:
            message = "belongs to no result; power readings are in a folder named like the result"
            yield listing.finding("warning", "unknown-file", message, entry.place)
    for folder in counts:
        for entry in listing.inside(folders[folder]):
            if entry.kind != "file" or not re.fullmatch(r"(node|sw)_[0-9]{1,9}\.txt", entry.name):
                message = "not a power reading; only node_N.txt and sw_N.txt belong here"
                unparsed = entry.name.startswith(("node", "sw"))  # int() of what follows the last "_" fails
                yield listing.finding("error" if unparsed else "warning", "power-files", message, entry.place)


def _numbers(listing: Listing, place: str, kind: str) -> list[int]:
    names = (re.fullmatch(rf"{kind}_([0-9]{{1,9}})\.txt", entry.name) for entry in listing.files(place))
    return [int(name[1]) for name in names if name]
