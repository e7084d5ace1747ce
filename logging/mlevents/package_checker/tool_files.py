"""Check files that control MLCommons' tools: package_checker_params and privateid.json."""

from collections.abc import Iterator
from typing import Final

from mlevents import keys
from mlevents.event import Finding, short
from mlevents.package_checker.files import Listing

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


def check_parameters(listing: Listing, place: str, division: str | None = None) -> Iterator[Finding]:
    """Yield findings about a package_checker_params: what it disables, and lines without effect.

    At the top only MLCommons' verification scripts read it, as command line options. In results/ the package checker
    compares raw lines, newline included, so that only a last line without one takes effect.
    """
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
        message = f"{short(word)} {effect}{hint}"
        yield listing.finding("warning", "checker-parameters", message, place, number)


def check_private_id(listing: Listing, place: str) -> Finding:
    """Return the finding about a privateid.json."""
    message = "written by MLCommons' summary (--generate_private_ids) and not part of a submission; delete it"
    return listing.finding("warning", "private-id", message, place)
