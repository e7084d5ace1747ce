"""Verdicts on a set of repeated runs: of quality, which decides, and of time."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from judging.comparison.speedup_ratio import Ratio
from judging.scoring.interval import as_values
from mlevents.event import listed
from mlevents.terminal_escape import printable

TIME_TOLERANCE: Final = 0.05
"""Accepted slow-down on equal hardware and versions: the spread that MLCommons states for results other than imaging
(results page of MLPerf Training v2.1, "Metric")."""
MAX_SHOWN: Final = 8  # differences of a kind in the text; the JSON has all

Agreement = Literal["equal", "within the spread", "differs", "unknown"]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of one run: time if it reached its target, progress and quality of the last evaluation."""

    reached: bool
    minutes: float | None
    progress: float | None
    quality: float | None
    disturbances: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """One run and its repetition. `problem` says why there is no `again`."""

    number: int
    seed: int | None
    original: RunResult
    again: RunResult | None = None
    course: Literal["equal", "differs", "unknown"] = "unknown"
    words: str = ""
    problem: str


@dataclass(frozen=True, kw_only=True)
class SetVerdict:
    """Comparison of a set of runs with their repetitions."""

    name: str
    unit: str
    runs: tuple[Repeat, ...]
    quality: Agreement
    to_target: Agreement
    courses_equal: int
    time: Ratio | None  # recorded time / time now, over the runs that reached the target both times
    not_comparable: tuple[str, ...]  # differences that may explain another time: threads, ranks, hardware and versions
    differs: dict[str, dict[str, list[Any]]]
    failures: tuple[str, ...]

    @property
    def reproduced(self) -> bool:
        """True if every run was repeated and reached the same quality, whatever its time."""
        return not self.failures

    @property
    def contradicted(self) -> bool:
        """True if a repeated run differs from its original, apart from runs that could not be repeated."""
        return len(self.failures) > sum(bool(run.problem) for run in self.runs)

    @property
    def same_machine(self) -> bool:
        """True if no difference in hardware, versions, ranks and threads is known."""
        return not self.not_comparable and any(run.again for run in self.runs)

    @property
    def quality_sentence(self) -> str:
        done = [run for run in self.runs if run.again]
        unit = "epochs" if self.unit == "epoch" else self.unit or "samples"
        if not self.reproduced:
            counted = f" ({len(done)} of {len(self.runs)} runs repeated)" if done else ""
            data = " The data differ, so samples to target need not agree."
            data = data if self.differs["origin"].get("data") else ""
            said = "not reproduced" if done else "not run"
            return f"Quality: {said}: {'; '.join(self.failures)}{counted}.{data}"
        again = sum(run.original.reached for run in done)
        which = "" if again == len(done) else ", the same ones as originally"
        details = {"equal": f"{unit} to target equal", "within the spread": f"{unit} to target within the set's spread"}
        parts = [details[self.to_target]] if self.to_target in details else []
        parts += [f"{self.courses_equal} with equal quality at every evaluation"] * bool(self.courses_equal)
        shown = f" ({'; '.join(parts)})" if parts else ""
        return f"Quality: reproduced, {again} of {len(done)} runs reach the target{which}{shown}."

    @property
    def time_verdict(self) -> Literal["not compared", "not comparable", "too few runs", "slower", "not slower"]:
        """Verdict of the time, on which `reproduced` does not depend; "slower": significantly, by more than
        TIME_TOLERANCE, on equal hardware, threads and versions."""
        if self.time is None:
            return "not compared"
        if self.not_comparable:
            return "not comparable"
        if self.time.bounds is None:
            return "too few runs"
        return "slower" if self.time.bounds[1] < 1 - TIME_TOLERANCE else "not slower"

    @property
    def time_sentence(self) -> str:
        if self.time is None:
            return "Time: not compared: no run reached its target both times."
        where = "on equal hardware, threads and versions as far as recorded"
        if self.time_verdict == "not comparable":
            where = f"not comparable: {'; '.join(self.not_comparable)}"
        elif self.time_verdict == "slower":
            where += ". The original times are not reproduced"
        pairs = [(run.original, run.again) for run in self.runs if run.again]
        then, now = (sum(bool(run.disturbances) for run in side) for side in zip(*pairs, strict=True))
        busy = f" Other load disturbed {then} of {len(pairs)} runs then, {now} now." if then or now else ""
        return f"Time (unverified): {speed(self.time)}; {where}.{busy}"

    @property
    def sentence(self) -> str:
        return f"{self.quality_sentence} {self.time_sentence}"

    def as_dict(self) -> dict[str, Any]:
        names = ("reproduced", "same_machine", "quality_sentence", "time_verdict", "time_sentence", "sentence")
        return {**as_values(self), **{name: getattr(self, name) for name in names}}

    @property
    def text(self) -> str:
        lines = [f"{self.name}: {self.quality_sentence}", f"    {self.time_sentence}"]
        lines += [f"    run {run.number} (seed {run.seed}): {run.problem or run.words}" for run in self.runs]
        for kind, names in self.differs.items():
            if shown := [f"{name}: {short(old, '-')} -> {short(new, '-')}" for name, (old, new) in names.items()]:
                lines.append(f"    {kind} old -> new: {listed(shown, MAX_SHOWN, '; ')}")
        return "\n".join(map(printable, lines))


def speed(time: Ratio) -> str:
    """Format the ratio of times as "1.31x slower [1.25, 1.37]"."""
    text = time.mapped(lambda ratio: 1 / ratio).text("x slower") if time.value < 1 else time.text("x faster")
    if time.bounds is None:
        return f"{text} (too few runs for an interval)"
    return text + (", no significant difference" if time.bounds[0] < 1 < time.bounds[1] else "")


def short(value: object, missing: str = "unknown") -> str:
    """Format a value in at most 60 characters."""
    text = missing if value is None else f"{value:.5f}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
