"""Selection, by measured step times, of changes that speed up a training step and leave its loss as it was."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, TypeVar

from judging.ground import stdio
from judging.ground.errors import TimedrunError
from judging.pages.table import Table
from judging.scoring.interval import Interval, as_values
from mlevents.terminal_escape import printable
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_times import UNTRIED, StepTimes, speed_up, step_times
from timedrun.runner.config import RunConfig
from timedrun.runner.run.worker import LaunchOptions

Settings = TypeVar("Settings")
GIVEN: Final = "given"
CHOSEN: Final = "chosen"
STEPS: Final = StepPlan(positions=(0.1, 0.5, 0.9), chunks=3, chunk=5, skip=2, evaluate=False)
TOLERANCE: Final = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}
"""Relative difference of the first losses that rounding explains, by precision."""


@dataclass
class Evidence:
    """Measurements of one change, and the verdict on it."""

    change: str
    alone: Interval | None = None  # Of the given settings with the change, over those without it. None: not measured.
    within: Interval | None = None  # of the combined changes, over all but this one
    loss: float | None = None  # largest relative difference of a loss from the given settings', of the change alone
    kept: bool = False
    reason: str = UNTRIED


@dataclass
class Selection(Generic[Settings]):
    """Kept changes, and the evidence for each."""

    settings: Settings
    evidence: dict[str, Evidence]
    speed_up: Interval | None = None  # Over the given settings, measured last. None: nothing was kept.
    loss: float = 0.0  # largest relative difference of a loss from the given settings'
    times: dict[str, StepTimes] = field(default_factory=dict)
    """Of the given and of the chosen settings, measured last in turns."""

    @property
    def kept(self) -> list[str]:
        return [name for name, value in self.evidence.items() if value.kept]

    @property
    def unmeasured(self) -> list[str]:
        return [name for name, value in self.evidence.items() if value.reason == UNTRIED]

    @property
    def sentences(self) -> list[str]:
        return [f"{change}: {verdict(evidence)}" for change, evidence in self.evidence.items()]

    def report(self, name: str) -> str:
        """Return the evidence for each change, and the speed-up of all on the step called `name`, as lines."""
        rows = [
            [evidence.change, "kept" if evidence.kept else "dropped", verdict(evidence)]
            for evidence in self.evidence.values()
        ]
        table = Table(["change", "", "step, with it over without it [95 %]"], rows)
        lines = [*map(printable, table.lines(stdio.terminal_columns(sys.stdout))), ""]
        if self.speed_up is None:
            measured = "that was measured " if self.unmeasured else ""
            return "\n".join([*lines, f"no change {measured}pays: {name} stays as it is"])
        given, chosen = (self.times[side].seconds * 1e3 for side in (GIVEN, CHOSEN))
        lines.append(f"{name}: {given:.2f} ms per step; chosen: {chosen:.2f} ms: {self.speed_up.text()}")
        return "\n".join([*lines, f"losses of the first steps differ by at most {self.loss:.1e}"])

    def as_values(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "unmeasured": self.unmeasured,
            "speed_up": self.speed_up and as_values(self.speed_up),
            "loss_difference": self.loss,
            "seconds_per_step": {name: times.seconds for name, times in self.times.items()},
            "changes": [as_values(evidence) for evidence in self.evidence.values()],
        }


def verdict(evidence: Evidence) -> str:
    """Return the speed-up of a change and the verdict on it."""
    gain = evidence.within or evidence.alone
    shown = f"{gain.text()}, " if gain else ""
    return f"{shown}{'kept' if evidence.kept else 'dropped'}{f': {evidence.reason}' if evidence.reason else ''}"


@dataclass
class Selector(Generic[Settings]):
    """Searches a fast combination of changes.

    Each change is measured alone. Those that help are combined, with those that do not fit alone and all that these
    need. Then each is left out of the combination once, and dropped unless the step is shown to be slower without it.

    Args:
        given: the settings to start from. changes: names, each after those that it needs.
        changed: return the given settings with some of the changes; raise ValueError or TimedrunError if they do not
            fit together.
        measured: measure settings by any names in turns; return their times and the reasons of those that failed. The
            second argument is True in the search, False for the last measurement, which no time limit should end.
        setting: return the name of the setting of a change: of several changes of one, at most one is kept.
        tolerance: relative difference of a loss that rounding explains.
        expired: return True once the search's time is over: changes that helped alone are kept, the rest is left out.
    """

    given: Settings
    changes: Sequence[str]
    changed: Callable[[Sequence[str]], Settings]
    measured: Callable[[Mapping[str, Settings], bool], tuple[dict[str, StepTimes], dict[str, str]]]
    _: KW_ONLY
    setting: Callable[[str], str] = str
    tolerance: float
    shown: Callable[[str], object] = lambda text: None
    expired: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.evidence = {change: Evidence(change) for change in self.changes}
        self.losses: tuple[float, ...] = ()

    def run(self) -> Selection[Settings]:
        """Measure, and return the selection. Raises ValueError if the given or the chosen settings cannot be measured,
        or the chosen ones change the loss."""
        kept = self._left_out(self._combined(self._alone()), self._alone_problem)
        kept = self._left_out(kept, self._within_problem)
        for change, evidence in self.evidence.items():
            evidence.kept = change in kept
        if not kept:
            return Selection(self.given, self.evidence)
        self.shown("the given and the chosen settings")
        chosen = self.changed(kept)
        times, failed = self.measured({GIVEN: self.given, CHOSEN: chosen}, False)
        if GIVEN in failed:
            raise ValueError(f"the given settings cannot be measured: {failed[GIVEN]}")
        self.losses = times[GIVEN].losses
        if problem := self._problem(CHOSEN, times, failed):
            raise ValueError(f"the step with {', '.join(kept)} {problem}")
        gain = speed_up(times[GIVEN], times[CHOSEN])
        return Selection(chosen, self.evidence, gain, self._loss_difference(times[CHOSEN]), times)

    def _alone(self) -> list[str]:
        """Measure each change alone; return those that run and leave the loss as it was, and those that do not fit."""
        usable = []
        for change, evidence in self.evidence.items():
            try:
                settings = self.changed([change])
            except (ValueError, TimedrunError) as error:
                evidence.reason = f"it fits neither the given settings nor the other changes: {error}"
                usable.append(change)
                continue
            if self.expired():
                continue
            self.shown(f"{change}, alone")
            times, failed = self.measured({GIVEN: self.given, change: settings}, True)
            if failed and (self.expired() or UNTRIED in failed.values()):
                continue
            if GIVEN in times:
                self.losses = times[GIVEN].losses
            elif not self.losses:
                raise ValueError(f"the given settings cannot be measured, in turns with {change}: {failed[GIVEN]}")
            if not failed:
                evidence.alone = speed_up(times[GIVEN], times[change])
                evidence.loss = self._loss_difference(times[change])
            if problem := self._problem(change, times, failed):
                evidence.reason = f"it {problem}"
            else:
                evidence.reason = ""
                usable.append(change)
        return usable

    def _combined(self, usable: Sequence[str]) -> list[str]:
        """Return the changes that fit together, the fastest one of each setting."""
        combined: list[str] = []
        for change in usable:
            evidence = self.evidence[change]
            rival = next((other for other in combined if self.setting(other) == self.setting(change)), None)
            if rival:  # a change that does not fit alone needs the others, and was declared as the better one
                old = self.evidence[rival].alone
                if evidence.alone and old and old.value >= evidence.alone.value:
                    evidence.reason = f"{rival} is faster"
                    continue
            tried = [other for other in combined if other != rival]
            try:
                self.changed([*tried, change])
            except (ValueError, TimedrunError):
                if evidence.alone:
                    evidence.reason = f"it does not go with {', '.join(tried)}"
                continue
            if rival:
                self.evidence[rival].reason = f"{change} is faster"
            evidence.reason, combined = "", [*tried, change]
        return combined

    def _left_out(self, kept: list[str], problem: Callable[[Evidence, list[str], list[str]], str]) -> list[str]:
        """Leave out each change that has a problem and that the others do not need."""
        for change in reversed(kept):  # those that need others come first
            evidence = self.evidence[change]
            rest = [other for other in kept if other != change]
            try:
                self.changed(rest)
            except (ValueError, TimedrunError):
                evidence.reason = "the others need it"
                continue
            evidence.reason = problem(evidence, kept, rest)
            if evidence.reason:
                kept = rest
        return kept

    def _alone_problem(self, evidence: Evidence, *_: list[str]) -> str:
        """Return why a change does not help alone, or "" if it does or does not fit alone."""
        return _gain_problem(evidence.alone) if evidence.alone else ""

    def _within_problem(self, evidence: Evidence, kept: list[str], rest: list[str]) -> str:
        """Measure `kept` and `rest`, which lacks the change, and return why the change does not pay, or ""."""
        if not self.expired():
            self.shown(f"{len(kept)} changes together, and without {evidence.change}")
            times, failed = self.measured({"rest": self.changed(rest), "combined": self.changed(kept)}, True)
            if not failed:
                evidence.within = speed_up(times["rest"], times["combined"])
            without, combined = (self._problem(name, times, failed) for name in ("rest", "combined"))
            late = failed and (self.expired() or UNTRIED in failed.values())
            if not (without and combined or late):  # else neither is shown to be the better one
                if without or combined:
                    return f"with the others, it {combined}" if combined else ""
                return _gain_problem(speed_up(times["rest"], times["combined"]))
        return self._alone_problem(evidence) if evidence.alone else UNTRIED

    def _loss_difference(self, times: StepTimes) -> float:
        pairs = zip(self.losses, times.losses, strict=True)
        return max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs), default=0.0)

    def _problem(self, name: str, times: Mapping[str, StepTimes], failed: Mapping[str, str]) -> str:
        """Return that settings fail, or that a loss differs from the given settings' by more than rounding, else ""."""
        if name in failed:
            return f"fails: {failed[name]}"
        if self._loss_difference(times[name]) <= self.tolerance:
            return ""
        own, given = (" ".join(f"{loss:.6g}" for loss in losses) for losses in (times[name].losses, self.losses))
        return f"changes the loss: {own} in place of {given} in the first steps"


def selector(
    config: RunConfig,
    tried: Sequence[str],
    changed: Callable[[Sequence[str]], RunConfig],
    options: LaunchOptions,
    *,
    until: float,
) -> Selector[RunConfig]:
    """Return a selector among the equivalents of `config` and the changes `tried`, whose search of steps on this
    machine ends at the time `until` of time.monotonic."""

    def measured(configs: Mapping[str, RunConfig], limited: bool) -> tuple[dict[str, StepTimes], dict[str, str]]:
        left = until - time.monotonic()
        seconds = left / 2 if limited else math.inf  # a long warm-up, such as compiling, leaves time for the rest
        folder, threads = options.data_folder, options.threads
        return step_times(config.benchmark, configs, STEPS, data_folder=folder, threads=threads, seconds=seconds)

    asked = [name for name in TOLERANCE if f"precision {name}" in tried]
    return Selector(
        config,
        [*config.equivalents(), *tried],
        changed,
        measured,
        setting=lambda change: change.split()[0],
        tolerance=max(TOLERANCE[name] for name in (config.precision, *asked)),
        expired=lambda: time.monotonic() >= until,
        shown=lambda text: stdio.stage(f"timedrun auto: {text}", terminal_only=False),
    )


def _gain_problem(gain: Interval) -> str:
    return gain.verdict_against(1, "", "slower with it")
