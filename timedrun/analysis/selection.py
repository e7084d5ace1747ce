"""Selection, by measured step times, of changes that speed up a training step and leave its loss as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Generic, TypeVar

from judging.ground.errors import TimedrunError
from timedrun.analysis.step_times import StepSpeedUp, StepTimes, speed_up

Settings = TypeVar("Settings")
UNTRIED: Final = "not measured before the time was over"
GIVEN: Final = "given"
CHOSEN: Final = "chosen"


@dataclass
class Evidence:
    """Measurements of one change, and the verdict on it."""

    change: str
    alone: StepSpeedUp | None = None
    """Of the given settings with the change, over those without it. None: not measured."""
    within: StepSpeedUp | None = None
    """Of all kept changes, over all but this one."""
    loss: float | None = None
    """Largest relative difference of a loss from the given settings', of the change alone."""
    kept: bool = False
    reason: str = UNTRIED


@dataclass
class Selection(Generic[Settings]):
    """Kept changes, and the evidence for each."""

    settings: Settings
    evidence: dict[str, Evidence]
    speed_up: StepSpeedUp | None = None
    """Over the given settings, measured last. None: nothing was kept."""
    loss: float = 0.0
    """Largest relative difference of a loss from the given settings'."""
    times: dict[str, StepTimes] = field(default_factory=dict)
    """Of the given and of the chosen settings, measured last in turns."""

    @property
    def kept(self) -> list[str]:
        """Return the kept changes."""
        return [name for name, one in self.evidence.items() if one.kept]

    @property
    def sentences(self) -> list[str]:
        """Return the verdict on each change in words."""
        return [f"{one.change}: {verdict(one)}" for one in self.evidence.values()]

    def as_values(self) -> dict[str, Any]:
        """Return the evidence as JSON values."""

        def gain(one: StepSpeedUp | None) -> dict[str, float] | None:
            return one._asdict() if one else None

        return {
            "kept": self.kept,
            "speed_up": gain(self.speed_up),
            "loss_difference": self.loss,
            "seconds_per_step": {name: times.seconds for name, times in self.times.items()},
            "changes": [
                {**asdict(one), "alone": gain(one.alone), "within": gain(one.within)} for one in self.evidence.values()
            ],
        }


def verdict(one: Evidence) -> str:
    """Return the speed-up of a change and the verdict on it."""
    gain = one.within or one.alone
    shown = f"{gain.ratio:.2f}x [{gain.low:.2f}, {gain.high:.2f}], " if gain else ""
    return f"{shown}{'kept' if one.kept else 'dropped'}{f': {one.reason}' if one.reason else ''}"


class Selector(Generic[Settings]):
    """Searches the fastest combination of changes.

    Each change is measured alone. Those that run and leave the loss as it was are combined; then each is left out of
    the combination in turn, and those without which it is not shown to be slower are dropped, until all that are left
    pay. Changes that were dropped at once, and without which the rest is shown to be slower, come back.

    Args:
        given: the settings to start from. changes: names in the order in which they can be applied.
        changed: return the given settings with some of the changes; raise ValueError or TimedrunError if they do not
            fit together.
        measured: measure settings by any names in turns; return their times and the reasons of those that failed. The
            second argument is True in the search, False for the last measurement, which no time limit should end.
        setting: return the name of the setting of a change: of several changes of one, at most one is kept.
        slow_starts: changes whose warm-up takes long, such as compiling: tried last, with the rest only.
        tolerance: relative difference of a loss that rounding explains.
        together: settings in memory at once, the given ones included.
        expired: return True once the search's time is over: what has not been measured by then is left out.
    """

    def __init__(
        self,
        given: Settings,
        changes: Sequence[str],
        changed: Callable[[Sequence[str]], Settings],
        measured: Callable[[Mapping[str, Settings], bool], tuple[dict[str, StepTimes], dict[str, str]]],
        *,
        setting: Callable[[str], str] = str,
        slow_starts: Iterable[str] = (),
        tolerance: float,
        together: int = 8,
        shown: Callable[[str], object] = lambda text: None,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.given, self.changed, self.measured, self.setting = given, changed, measured, setting
        self.slow_starts = [change for change in changes if change in set(slow_starts)]
        self.changes = [change for change in changes if change not in self.slow_starts]
        self.tolerance, self.together, self.shown, self.expired = tolerance, together, shown, expired
        self.evidence = {change: Evidence(change) for change in [*self.changes, *self.slow_starts]}
        self.losses: tuple[float, ...] = ()
        self.out: set[str] = set()
        """Changes that fail or change the loss."""

    def run(self) -> Selection[Settings]:
        """Measure, and return the selection.

        Raises:
            ValueError: the given settings cannot be measured.
        """
        self._alone()
        kept = self._without_the_useless(self._combined())
        kept = self._with_slow_starts(kept)
        for name, one in self.evidence.items():
            one.kept = name in kept
        if not kept:
            return Selection(self.given, self.evidence)
        self.shown("the given and the chosen settings")
        chosen = self.changed(kept)
        times, failed = self.measured({GIVEN: self.given, CHOSEN: chosen}, False)
        if failed:
            raise ValueError("; ".join(f"{name} settings: {reason}" for name, reason in failed.items()))
        gain = speed_up(times[GIVEN], times[CHOSEN])
        return Selection(chosen, self.evidence, gain, self._loss_difference(times[CHOSEN]), times)

    def _alone(self) -> None:
        """Measure each change alone."""
        settings = {}
        for change in self.changes:
            try:
                settings[change] = self.changed([change])
            except (ValueError, TimedrunError) as error:
                self.evidence[change].reason = str(error)
        self.shown(f"{len(settings)} changes, each alone")
        for change, base, times in self._in_turns(self.given, settings, GIVEN):
            one = self.evidence[change]
            self.losses = self.losses or base.losses
            if isinstance(times, str):
                one.reason = f"it fails: {times}"
            else:
                one.alone, one.loss = speed_up(base, times), self._loss_difference(times)
                problem = self._loss_problem(times)
                one.reason = f"it changes the loss: {problem}" if problem else ""
            if one.reason:
                self.out.add(change)
        for change in settings:
            if self.evidence[change].reason == UNTRIED:
                self.out.add(change)

    def _combined(self) -> list[str]:
        """Return the changes that run, leave the loss as it was and fit together, the fastest one of each setting."""
        combined: list[str] = []
        for change in self.changes:
            one = self.evidence[change]
            if change in self.out:
                continue
            rival = next((other for other in combined if self.setting(other) == self.setting(change)), None)
            if rival:  # a change that does not run alone needs the others, and was declared as the better one
                old = self.evidence[rival].alone
                if one.alone and old and old.ratio >= one.alone.ratio:
                    one.reason = f"{rival} is faster"
                    continue
                self.evidence[rival].reason = f"{change} is faster"
            tried = [other for other in combined if other != rival]
            try:
                self.changed([*tried, change])
            except (ValueError, TimedrunError) as error:
                one.reason = f"it does not fit the others: {error}"
                continue
            one.reason = ""
            combined = [*tried, change]
        return combined

    def _without_the_useless(self, combined: list[str]) -> list[str]:
        """Leave out changes until each one left pays: all useless ones at once, or one by one if that is slower."""
        before: list[str] = []
        one_by_one = False
        while combined or before:
            rivals = self._rivals(combined)
            if before:
                rivals[CHOSEN] = self.changed(before)
            self.shown(f"{len(combined)} changes together, and without each in turn")
            gains: dict[str, StepSpeedUp] = {}
            failed: dict[str, str] = {}
            for change, base, times in self._in_turns(self.changed(combined), rivals, "combined"):
                if problem := self._loss_problem(base):
                    raise ValueError(f"together, the changes {', '.join(combined)} change the loss: {problem}")
                if isinstance(times, str):
                    failed[change] = f"it fails: {times}"
                else:
                    gains[change] = speed_up(times, base)
            dropped = [change for change in before if change not in combined]
            over_before = gains.pop(CHOSEN, None)
            if before and over_before is None:  # the time was over
                return before
            if over_before and over_before.high < 1:
                for change in dropped:
                    self.evidence[change].reason = "no difference shown alone, but faster with the rest"
                if one_by_one or len(dropped) == 1:
                    return before
                one_by_one, before, combined = True, [], before
                continue
            useless = []
            for change, gain in sorted(gains.items(), key=lambda item: item[1].ratio):
                self.evidence[change].within, self.evidence[change].reason = gain, self._gain_problem(gain)
                if self.evidence[change].reason:
                    useless.append(change)
            if not useless or self.expired():
                for change in rivals.keys() & set(combined) - gains.keys():
                    self.evidence[change].reason = f"without it {failed.get(change, UNTRIED)}"
                for change in useless:
                    self.evidence[change].reason += ", and no time to leave it out"
                return combined
            useless = useless[:1] if one_by_one else useless
            before, combined = combined, [change for change in combined if change not in useless]
        return []

    def _rivals(self, combined: Sequence[str]) -> dict[str, Settings]:
        """Return the combination without each change, by its name, but for those that others need."""
        found = {}
        for change in combined:
            try:
                found[change] = self.changed([other for other in combined if other != change])
            except (ValueError, TimedrunError):
                self.evidence[change].reason = "the others need it"
        return found

    def _with_slow_starts(self, kept: list[str]) -> list[str]:
        """Add each change whose warm-up is long, if it pays."""
        for change in self.slow_starts:
            one = self.evidence[change]
            try:
                tried = self.changed([*kept, change])
            except (ValueError, TimedrunError) as error:
                one.reason = str(error)
                continue
            if self.expired():
                continue
            self.shown(f"{change}, with the rest")
            for _, base, times in self._in_turns(self.changed(kept), {change: tried}, "kept"):
                self.losses = self.losses or base.losses
                if isinstance(times, str):
                    one.reason = f"it fails: {times}"
                    continue
                one.within, one.loss = speed_up(base, times), self._loss_difference(times)
                if problem := self._loss_problem(times):
                    one.reason = f"it changes the loss: {problem}"
                else:
                    one.reason = self._gain_problem(one.within)
                if not one.reason:
                    kept = [*kept, change]
        return kept

    def _in_turns(
        self, base: Settings, others: Mapping[str, Settings], name: str
    ) -> Iterable[tuple[str, StepTimes, StepTimes | str]]:
        """Measure `others` in groups that fit into memory, each group with `base`; yield the name, the times of the
        base in its group, and its own times or the reason why there are none."""
        names = list(others)
        size = max(1, self.together - 1)
        for first in range(0, len(names), size):
            group = {other: others[other] for other in names[first : first + size]}
            times, failed = self.measured({name: base, **group}, True)
            if name not in times:
                if self.expired():
                    return
                raise ValueError(f"the {name} settings cannot be measured: {failed[name]}")
            for other in group:
                yield other, times[name], times[other] if other in times else failed[other]

    def _loss_difference(self, times: StepTimes) -> float:
        return max(
            (abs(a - b) / max(abs(a), 1e-12) for a, b in zip(self.losses, times.losses, strict=True)), default=0.0
        )

    def _loss_problem(self, times: StepTimes) -> str:
        """Return the losses if one differs from the given settings' by more than rounding, else ""."""
        difference = self._loss_difference(times)
        if difference <= self.tolerance:
            return ""
        shown = [" ".join(f"{loss:.6g}" for loss in losses) for losses in (times.losses, self.losses)]
        return f"{shown[0]} in place of {shown[1]} in the first steps"

    @staticmethod
    def _gain_problem(gain: StepSpeedUp) -> str:
        """Return why a change does not pay, or ""."""
        return "" if gain.low > 1 else "slower with it" if gain.high < 1 else "no difference shown"
