"""Check results/<system>/<benchmark>: names, number and status of the result files, and files that control MLCommons'
tools."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlevents import keys
from mlevents.event import Finding, short
from mlevents.package_checker.files import Entry, Listing
from mlevents.record import natural
from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary

POWER: Final = "power"  # MLPerf's readings, which power_checker.py of mlperf-logging judges
PARAMETERS: Final = "package_checker_params"
PRIVATE_ID: Final = "privateid.json"

LARGEST_PARAMETERS: Final = 1 << 16  # bytes
# package_checker.py of mlperf-logging 4.1.68, and the further options of the scripts verify_for_v*_training.sh.
BYPASSES: Final = {
    "rcp-bypass": "a failed check of reference convergence does not fail the package",
    "seed-checker-bypass": "repeated or missing seeds do not fail the package",
}
OPTIONS: Final = {
    **BYPASSES,
    "rcp-bert-train-samples": "reference convergence is compared with train_samples, the size of the data, and passes",
    "quiet": "warnings are not shown",
    "werror": "warnings fail the package",
}


@dataclass(frozen=True)
class ResultSet:
    """Results of one benchmark on one system; `files` are its result_*.txt in natural order."""

    system: str
    benchmark: str
    folder: Path
    files: tuple[Path, ...]

    @property
    def place(self) -> str:
        """The folder relative to the submission."""
        return f"results/{self.system}/{self.benchmark}"


def sets_in(listing: Listing) -> list[ResultSet]:
    """Return every results/<system>/<benchmark> of `listing`, sorted."""
    items = []
    for system in listing.folders("results"):
        for benchmark in listing.folders(system.place):
            names = [entry.name for entry in listing.files(benchmark.place) if is_result(entry.name)]
            files = tuple(listing.root / benchmark.place / name for name in sorted(names, key=natural))
            items.append(ResultSet(system.name, benchmark.name, listing.root / benchmark.place, files))
    return items


def is_result(name: str) -> bool:
    """Return True if MLCommons' tools take a file of this name for a result."""
    return re.fullmatch(r"result_.*\.txt", name, re.DOTALL) is not None


def check_results(
    listing: Listing, results: ResultSet, read: Sequence[RunSummary], rules: BenchmarkRules | None
) -> Iterator[Finding]:
    """Yield findings about the number of results, their names, files that are not logs, and failed runs. `read`: the
    logs among them that could be read. `rules`: of the benchmark; None if unknown, so that nothing is counted."""
    demonstration = any(summary.is_demonstration for summary in read)
    if not results.files:
        yield listing.finding("error", "results-missing", "no result_N.txt, so the set has no results", results.place)
        return
    numbers = []
    for file in results.files:
        number = re.fullmatch(r"result_(?:.*_)?([0-9]{1,18})\.txt", file.name, re.DOTALL)
        if number:
            numbers.append(int(number[1]))
        else:
            message = "not named result_N.txt with a number; MLCommons' checker accepts any name, reviewers do not"
            yield listing.finding("warning", "result-name", message, f"{results.place}/{file.name}")
    plain = all(re.fullmatch(r"result_[0-9]{1,18}\.txt", file.name) for file in results.files)
    if plain and max(numbers) - min(numbers) >= len(set(numbers)):
        absent = sorted(set(range(min(numbers), min(max(numbers), min(numbers) + 1000))) - set(numbers))
        message = (
            f"missing number {', '.join(map(str, absent[:8]))}; runs must not be selected by their times, so explain "
            "in the README why it is missing"
        )
        yield listing.finding("warning", "result-numbering", message, results.place)
    status = {os.path.abspath(summary.path): summary.status for summary in read if summary.events}
    for file in results.files:
        if os.path.abspath(file) not in status:
            message = "named like a result, but not a readable MLPerf log"
            yield listing.finding("error", "result-no-log", message, f"{results.place}/{file.name}")
    if rules is not None and not demonstration:
        failed = [file.name for file in results.files if status.get(os.path.abspath(file)) != keys.SUCCESS]
        if len(failed) > rules.dropped:
            message = (
                f"{len(failed)} of {len(results.files)} runs failed ({', '.join(failed[:8])}), but at most "
                f"{rules.dropped} may, so the set has no score; MLCommons' checker ignores it"
            )
            yield listing.finding("error", "runs-failed", message, results.place)


def check_other(listing: Listing, entry: Entry, reason: str, division: str | None = None) -> Iterator[Finding]:
    """Yield findings about a file that is no result: one of MLCommons' tools, or one that none reads for a `reason`."""
    if entry.name == PARAMETERS and entry.kind == "file":
        yield from check_parameters(listing, entry.place, division)
        return
    rule, message = "unknown-file", f"no tool reads it: {reason}; remove it"
    if entry.name == PRIVATE_ID and entry.kind == "file":
        rule = "private-id"
        message = "written by MLCommons' summary (--generate_private_ids) and not part of a submission; delete it"
    yield listing.finding("warning", rule, message, entry.place)


def check_parameters(listing: Listing, place: str, division: str | None = None) -> Iterator[Finding]:
    """Yield findings about a package_checker_params: what it disables, and lines without effect.

    At the top only MLCommons' verification scripts read it, as command line options. In results/ the package checker
    compares raw lines, newline included, so that only a last line without one takes effect."""
    entry = listing.entries[place]
    try:
        with open(listing.root / place, "rb") as file:
            text = file.read(LARGEST_PARAMETERS + 1).decode("utf-8", "replace")
    except OSError:
        return  # reported by the check of all files
    if entry.size > LARGEST_PARAMETERS:
        yield listing.finding("error", "checker-parameters", "too large for a list of options; remove it", place)
        return
    at_top = "/" not in place
    known = OPTIONS if at_top else BYPASSES
    unread = []
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        word = line.rstrip("\r\n")
        if not word.strip():
            continue
        if word not in known:
            unread.append((number, word))
        elif not at_top and line != word:
            message = (
                f"{word} is ignored: MLCommons' package checker compares the line with its newline; remove it, or "
                "the newline if the bypass is intended"
            )
            yield listing.finding("warning", "checker-parameters", message, place, number)
        else:
            closed = "" if division != keys.OPEN else "; no effect in the open division, which has no such check"
            message = f"{word}: {known[word]}{closed}; reviewers will ask why"
            yield listing.finding("warning", "checker-bypass", message, place, number)
    for number, word in unread[:8]:
        close = word.strip().lower().replace("_", "-").lstrip("-")
        hint = f"; did you mean {close}?" if close in known and close != word else f"; known: {', '.join(known)}"
        effect = "makes the checker exit (unknown option)" if at_top else "is ignored by MLCommons' package checker"
        yield listing.finding("warning", "checker-parameters", f"{short(word)} {effect}{hint}", place, number)
