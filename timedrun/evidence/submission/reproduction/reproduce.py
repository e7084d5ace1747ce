"""Recompute every score from its logs and compare it with the claims, to their number of digits."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, Final, Literal

from judging.comparison.speedup_ratio import across
from judging.ground.stdio import terminal_columns
from judging.pages.score_table import DEMONSTRATION, NOTICE, UNVERIFIED
from judging.pages.table import Table
from judging.scoring.score import Score, score
from mlevents.package_checker.files import MANIFEST
from mlevents.record import result_files
from mlevents.terminal_escape import printable
from timedrun.evidence.submission.reproduction.claims import ChangedFile, Claim, changed_files, decimals, packages

ClaimStatus = Literal["reproduced", "differs", "cannot be scored", "not found", "not here", "not claimed"]
"""Without logs, a claim of a package is "not found", which is a failure, and one of a list of claims is "not here"."""
MAX_LISTED: Final = 10  # changed files listed in the text; the JSON lists all


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of one set of runs: recomputed from the logs, claimed, and how the two compare."""

    submitter: str
    system: str
    benchmark: str
    what: str  # "score" (minutes), "quality" or a ratio's name, as "ratio to <system>"
    verdict: ClaimStatus
    recomputed: float | None
    claimed: str | None
    words: str
    source: str = ""
    note: str = ""
    round: str = ""
    entry: str = ""
    demonstration: bool = False

    @property
    def of(self) -> tuple[str, ...]:
        """Set and quantity of the figure; claims from several sources may share them."""
        return self.submitter, self.system, self.benchmark, self.what


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """All values and changed files at one path."""

    figures: tuple[Figure, ...]
    files: tuple[ChangedFile, ...]

    @property
    def reproduced(self) -> bool:
        """True if all claims with logs here are reproduced and no file was changed; without claims, if sets score."""
        claimed = [figure for figure in self.figures if figure.verdict != "not claimed" and figure.claimed is not None]
        relevant = [figure for figure in claimed if figure.verdict != "not here"] if claimed else list(self.figures)
        if not relevant:
            return False
        return not self.files and all(figure.verdict in ("reproduced", "not claimed") for figure in relevant)

    def as_dict(self) -> dict[str, Any]:
        return {
            "reproduced": self.reproduced,
            "verified": False,
            "notice": NOTICE,
            "figures": [asdict(figure) for figure in self.figures],
            "files": [asdict(file) for file in self.files],
        }

    @property
    def text(self) -> str:
        order = list(dict.fromkeys(figure.of for figure in self.figures))
        shown = [figure for figure in self.figures if figure.verdict != "not here"]
        shown.sort(key=lambda figure: order.index(figure.of))  # claims of one figure from several sources come together
        sources = dict.fromkeys(figure.source for figure in shown if figure.source)
        marks = {source: f" [{number}]" for number, source in enumerate(sources, 1)}
        rows = [_row(figure, marks.get(figure.source, "")) for figure in shown]
        for place in range(len(shown) - 1, 0, -1):
            if shown[place].of == shown[place - 1].of:
                rows[place][:5] = [""] * 5
        header = ["submitter", "system", "benchmark", "figure", "from the logs", "claimed", "verdict"]
        lines = Table(header, rows).lines(terminal_columns(sys.stdout))
        lines += [f"[{number}] {printable(source)}" for number, source in enumerate(sources, 1)]
        lines += dict.fromkeys(
            printable(f"{figure.system} {figure.benchmark}, {figure.what}: {text}.")
            for figure in shown
            for text in (figure.words if figure.verdict in ("cannot be scored", "not found") else "", figure.note)
            if text
        )
        for package in dict.fromkeys(file.package for file in self.files):
            mine = [file for file in self.files if file.package == package]
            lines.append(f"{printable(package)}: files that differ from {MANIFEST}:")
            lines += [f"    {file.change}: {printable(file.file)}" for file in mine[:MAX_LISTED]]
            lines += [f"    and {len(mine) - MAX_LISTED} more (listed by --json)"] * (len(mine) > MAX_LISTED)
        if any(figure.demonstration for figure in self.figures):
            lines.append(DEMONSTRATION)
        return "\n".join([*lines, *self.not_here, NOTICE, self.conclusion])

    @property
    def not_here(self) -> list[str]:
        """The claims without logs, a line per round."""
        claims = [figure for figure in self.figures if figure.verdict == "not here" and figure.claimed is not None]
        lines = []
        for name in dict.fromkeys(figure.round for figure in claims):
            mine = [figure for figure in claims if figure.round == name]
            systems = ", ".join(dict.fromkeys(printable(f"{figure.system} {figure.benchmark}") for figure in mine))
            of = printable(f" of {name}") if name else ""
            lines.append(f"Not here: {len(mine)} claim{'s' * (len(mine) > 1)}{of} ({systems}).")
        return lines

    @property
    def conclusion(self) -> str:
        claimed = [figure for figure in self.figures if figure.claimed is not None and figure.verdict != "not here"]
        fine = sum(figure.verdict == "reproduced" for figure in claimed)
        count = len(self.files)
        differ = f" {count} file{'s' * (count > 1)} differ{'s' * (count == 1)} from the package's manifest."
        changed = differ if count else ""
        if not claimed and self.not_here:
            return f"not shown: no claim is about the logs here.{changed}"
        if not claimed:
            return f"not shown: no claims were made; these values are recomputed from the logs.{changed}"
        wrong = self.files or any(figure.verdict == "differs" for figure in claimed)
        verdict = "true" if self.reproduced else "false" if wrong else "not shown"
        present = " present" if self.not_here else ""
        return f"{verdict}: {fine} of {len(claimed)} claimed values{present} agree with the logs.{changed}"


def reproduce(path: Path, claims: Sequence[Claim] | None = None) -> Reproduction:
    """Score everything at `path` (a log, results, packages, a round) and compare it with `claims`, by default those of
    the packages' manifests, as are the packages' files. Raise ClaimError if one is unreadable."""
    opened = packages(path) if path.is_dir() else []
    if claims is not None:
        figures = compared(score([path]), claims, "not here")
    else:
        inside = [(package, score([package.folder])) for package in opened]
        figures = [figure for package, scores in inside for figure in compared(scores, package.claims)]
        alone = [file for file in result_files(path) if not {found.folder for found in opened} & {*file.parents}]
        figures += compared(score(alone), ()) if alone else []
    return Reproduction(
        figures=tuple(figures), files=tuple(change for package in opened for change in changed_files(package))
    )


def compared(
    scores: Sequence[Score], claims: Sequence[Claim], absent: Literal["not found", "not here"] = "not found"
) -> list[Figure]:
    """Return a figure for every claim, and for each score without a claim; `absent` is the verdict without logs."""
    figures: list[Figure] = []
    for own in scores:
        mine = [claim for claim in claims if claim.names(own.submitter, own.system, own.benchmark)]
        others = [score for score in scores if score.benchmark == own.benchmark]
        if not any(claim.minutes or not claim.scored for claim in mine):
            figures.append(_score_figure(own, None))
        for claim in mine:
            figures += _figures(own, claim, others, absent)
    for claim in claims:
        if not any(claim.names(own.submitter, own.system, own.benchmark) for own in scores):
            why = "claimed, but there is no log of that system and benchmark"
            for what, text in {"score": claim.minutes, "quality": claim.quality, claim.ratio_name: claim.ratio}.items():
                if text is not None:
                    figures.append(_figure(None, claim, what, None, text, why, absent))
    return figures


def agreement(recomputed: float, claimed: str, what: str = "the claim") -> tuple[ClaimStatus, str]:
    """Compare `recomputed` with `claimed`, rounded or truncated to its last digit; return the status and a description.
    "1e3" has its last digit at the thousands, "110" at the ones; 0, however it is written, agrees with 0 only. Raise
    ClaimError, which begins with `what`, if `claimed` is not a number."""
    places = decimals(claimed, what)
    step = Decimal(1).scaleb(-places)
    value, wanted = Decimal(repr(recomputed)), Decimal(claimed)
    if wanted == 0 != value:  # has no significant digit, so nothing rounds to it
        return "differs", f"differs by {value:+.{min(max(places, 3), 6)}f}"
    wanted = wanted.quantize(step, ROUND_HALF_EVEN)
    if wanted in (value.quantize(step, ROUND_HALF_UP), value.quantize(step, ROUND_HALF_EVEN)):
        return "reproduced", "reproduced"
    if wanted == value.quantize(step, ROUND_DOWN):
        return "reproduced", "reproduced; the claim is truncated, not rounded"
    return "differs", f"differs by {value - wanted:+.{min(max(places, 3), 6)}f}"


def _figures(own: Score, claim: Claim, others: Iterable[Score], absent: ClaimStatus) -> list[Figure]:
    """Return the values of `claim` on `own`; the last one has the note."""
    figures = []
    if claim.minutes is not None or not claim.scored:
        figures.append(_score_figure(own, claim))
    if claim.quality is not None:
        figures.append(_figure(own, claim, "quality", own.quality, claim.quality, "no run reached the target"))
    if claim.ratio_to is not None:
        named = (own.submitter, claim.ratio_to) if "/" not in claim.ratio_to else tuple(claim.ratio_to.split("/", 1))
        base = next((other for other in others if (other.submitter, other.system) == named), None)
        values = [_quantity(score, claim.ratio_of) if score else None for score in (base, own)]
        ratio = values[0] / values[1] if values[0] and values[1] else None
        lacking = "no score" if claim.ratio_of == "minutes" else f"no {claim.ratio_of.replace('_', ' ')}"
        why = f"{claim.ratio_to if values[1] else own.system} has {lacking} here"
        status = absent if base is None and claim.ratio is not None else None
        figures.append(_figure(own, claim, claim.ratio_name, ratio, claim.ratio, why, status))
        if base and base.division != own.division:
            aside = "; ".join(filter(None, [figures[-1].note, across(base.division, own.division)]))
            figures[-1] = replace(figures[-1], note=aside)
    kept = claim.note
    return [replace(each, note=each.note.removeprefix(kept).removeprefix("; ")) for each in figures[:-1]] + figures[-1:]


def _quantity(times: Score, name: str) -> float | None:
    """Return a quantity of `RATIOS`: the score, or what is known of its mean run."""
    if name == "minutes" or times.parts is None:
        return times.score_minutes if name == "minutes" else None
    return times.parts.samples if name == "samples" else times.parts.samples / times.parts.minutes / 60


def _score_figure(own: Score, claim: Claim | None) -> Figure:
    why = own.reason or "unknown reason"
    if claim and claim.minutes is None and own.score_minutes is None:
        return _figure(own, claim, "score", None, "none", f"no score, as claimed: {why}", "reproduced")
    if claim and claim.minutes is None:
        return _figure(own, claim, "score", own.score_minutes, "none", "has a score where none was claimed", "differs")
    return _figure(own, claim, "score", own.score_minutes, claim.minutes if claim else None, why)


def _figure(
    own: Score | None,
    claim: Claim | None,
    what: str,
    value: float | None,
    claimed: str | None,
    why: str,
    verdict: ClaimStatus | None = None,
) -> Figure:
    """Compare `value` with `claimed`, unless the `verdict` is given; `why` explains a missing value or the verdict. A
    claim without logs has no set `own`."""
    status: ClaimStatus
    of = own or claim
    assert of is not None
    notes = [claim.note] if own and claim else []
    if verdict is not None:
        status, words = verdict, why
    elif value is None:
        status, words = "cannot be scored", f"cannot be scored: {why}"
    elif claimed is None:
        status, words = "not claimed", "not claimed"
    else:
        status, words = agreement(value, claimed, f"{of.system} {of.benchmark}: {what}")
    if own and what != "quality" and status == "differs":
        notes.append("; ".join(f"{name} {words}" for name, words in own.failures.items()))
    return Figure(
        submitter=of.submitter or "any",
        system=of.system,
        benchmark=of.benchmark,
        what=what,
        verdict=status,
        recomputed=value,
        claimed=claimed,
        words=words,
        source=claim.source if claim else "",
        note="; ".join(filter(None, notes)),
        round=claim.round if claim else "",
        entry=claim.entry if claim else "",
        demonstration=own is not None and own.demonstration,
    )


def _row(figure: Figure, mark: str) -> list[str]:
    unit = {"score": " min", "quality": ""}.get(figure.what, "x")
    value = "-"
    if figure.recomputed is not None:
        kind = f"{UNVERIFIED}, demonstration" if figure.demonstration else UNVERIFIED
        digits = 5 if figure.what == "quality" or figure.recomputed < 0.1 else 3
        value = f"{figure.recomputed:.{digits}f}{unit}" + (f" ({kind})" if figure.what != "quality" else "")
    claimed = figure.claimed or "-"
    claimed = claimed if len(claimed) < 12 else f"{Decimal(claimed):.6g}"
    short = figure.words if figure.verdict in ("reproduced", "differs") else figure.verdict
    system = figure.system + f" ({figure.entry})" * bool(figure.entry)
    names = [printable(name) for name in (figure.submitter, system, figure.benchmark, figure.what)]
    return [*names, value, printable(claimed), short + mark]
