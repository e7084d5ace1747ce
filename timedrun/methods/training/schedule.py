"""Learning-rate schedules: pure functions of the progress made, as factors of the peak learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from judging.ground.errors import UsageError

Kind = Literal["constant", "cosine", "linear", "polynomial", "multistep", "trapezoid"]

ROUNDING = 1e-9
"""Far less than one step, in epochs. Both a position, 11 + 125 / 625, and a milestone, 35 x 0.32 = 11.200000000000001,
are rounded, and a milestone at the start of a step must not be reached one step late."""


def _check_kind(kind: str, milestones: Sequence[float], cooldown: float) -> None:
    """Raise ValueError for an unknown kind, and where it lacks or has no use for milestones or a cool-down."""
    if kind not in get_args(Kind):
        raise ValueError(f"schedule {kind!r} does not exist; known: {', '.join(get_args(Kind))}")
    if (kind == "multistep") != bool(milestones):
        raise ValueError(f"milestones require multistep and vice versa, not {milestones} with {kind}")
    if (kind == "trapezoid") != bool(cooldown):
        raise ValueError(f"a cool-down requires trapezoid and vice versa, not {cooldown:g} with {kind}")


@dataclass(frozen=True)
class Schedule:
    """Compute a learning rate over `epochs`: a linear warm-up from exactly 0, then `kind` from 1 to `final_factor`.

    Raises ValueError for settings that leave no epochs, or none after the warm-up.

    Examples:
        >>> schedule = Schedule(kind="cosine", epochs=90, warmup_epochs=8, scale=0.4)
        >>> schedule.epochs_scaled
        36
        >>> [round(schedule.factor(epoch), 4) for epoch in (0, 1 / 625, 4, 8, 15, 22, 36, 40)]
        [0.0, 0.0002, 0.5, 1.0, 0.8536, 0.5, 0.0, 0.0]
        >>> replace(schedule, scale_warmup=True).factor(8 * 0.4)  # the warm-up is scaled if asked
        1.0
        >>> triangle = Schedule(kind="linear", epochs=16, warmup_epochs=2, final_factor=0.2)
        >>> [round(triangle.factor(epoch), 3) for epoch in (0, 1, 2, 9, 16)]
        [0.0, 0.5, 1.0, 0.6, 0.2]
        >>> curves = [Schedule(kind="polynomial", epochs=10, power=power) for power in (2.0, 3.0)]
        >>> [curve.factor(5) for curve in curves]
        [0.25, 0.125]
        >>> steps = Schedule(kind="multistep", epochs=160, milestones=(80, 120), scale=0.5)
        >>> [round(steps.factor(epoch), 3) for epoch in (39.99, 40, 60, 79)]
        [1.0, 0.1, 0.01, 0.01]
        >>> trapezoid = Schedule(kind="trapezoid", epochs=10, warmup_epochs=2, cooldown_epochs=4, final_factor=0.2)
        >>> [round(trapezoid.factor(epoch), 3) for epoch in (1, 2, 5.9, 8, 10)]
        [0.5, 1.0, 1.0, 0.6, 0.2]
        >>> replace(trapezoid, scale=2.0).factor(16), Schedule(kind="constant", epochs=10).factor(7)
        (0.6, 1.0)
    """

    kind: Kind
    epochs: int
    """Length of the unscaled run."""
    warmup_epochs: float = 0.0
    final_factor: float = 0.0
    """Factor at the end (cosine, linear, polynomial, trapezoid)."""
    scale: float = 1.0
    """Scale-schedule ratio: the run lasts int(epochs x scale) epochs, and milestones and cool-down shrink with it."""
    scale_warmup: bool = False
    """Shrink the warm-up as well; MosaicML's 2022 runs did not."""
    milestones: tuple[float, ...] = ()
    """Epochs of the unscaled run at which multistep multiplies by `milestone_factor`."""
    milestone_factor: float = 0.1
    power: float = 2.0
    """Exponent of polynomial."""
    cooldown_epochs: float = 0.0
    """Epochs of the unscaled run over which trapezoid decays."""

    def __post_init__(self) -> None:
        _check_kind(self.kind, self.milestones, cooldown=self.cooldown_epochs)
        numbers = (self.epochs, self.warmup_epochs, self.scale, self.cooldown_epochs, *self.milestones)
        if any(number < 0 or not math.isfinite(number) for number in numbers):
            raise ValueError("epochs, warmup_epochs, scale, milestones and cooldown_epochs must be finite, 0 or more")
        if self.epochs_scaled < 1:
            raise ValueError(
                f"a schedule of {self.epochs} epochs at scale {self.scale} is shorter than one epoch; raise either"
            )
        warmup, cooldown = self.warmup_epochs_scaled, self.cooldown_epochs * self.scale
        if warmup >= self.epochs_scaled or warmup + cooldown > self.epochs_scaled:
            raise ValueError(
                f"warm-up ({warmup:g}) and cool-down ({cooldown:g}) do not fit into the {self.epochs_scaled} epochs of "
                f"this schedule ({self.epochs} at scale {self.scale}); shorten one of them or set scale_warmup"
            )

    @property
    def epochs_scaled(self) -> int:
        """Return int(epochs x scale) of the decimals: 90 x 0.32 = 28, 100 x 0.29 = 29 (floats would give 28), and of a
        quotient: 90 x (10 / 90) = 10."""
        return int(Fraction(str(self.epochs)) * Fraction(str(self.scale)) + Fraction(ROUNDING))

    @property
    def warmup_epochs_scaled(self) -> float:
        """Return the epochs of the warm-up, times `scale` with `scale_warmup`."""
        return self.warmup_epochs * self.scale if self.scale_warmup else self.warmup_epochs

    def factor(self, epoch: float) -> float:
        """Return the factor of the peak learning rate after `epoch` epochs (fraction: samples seen / training samples).

        The step that starts at `epoch` uses it, so with a warm-up the first step has learning rate 0.
        """
        milestones = [milestone * self.scale for milestone in self.milestones]
        cooldown = self.cooldown_epochs * self.scale
        return _factor(self, epoch, self.epochs_scaled, self.warmup_epochs_scaled, cooldown, milestones)


@dataclass(frozen=True, kw_only=True)
class StepSchedule:
    """Compute a learning-rate curve over `steps` optimizer steps, for benchmarks that count samples instead of epochs.

    Examples:
        >>> schedule = StepSchedule(kind="trapezoid", steps=100, warmup_steps=10, cooldown_steps=20)
        >>> [round(schedule.factor(step), 3) for step in (0, 5, 50, 90, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        >>> schedule.stretched(0.5).steps, schedule.decay_steps
        (50, 20)
    """

    kind: Kind
    steps: int
    warmup_steps: int = 0
    final_factor: float = 0.0
    """Factor at the end (cosine, linear, polynomial, trapezoid)."""
    milestones: tuple[int, ...] = ()
    """Steps at which multistep multiplies by `milestone_factor`."""
    milestone_factor: float = 0.1
    power: float = 2.0
    """Exponent of polynomial."""
    cooldown_steps: int = 0
    """Number of final steps over which trapezoid decays."""

    def __post_init__(self) -> None:
        _check_kind(self.kind, self.milestones, cooldown=self.cooldown_steps)
        if self.steps < 1 or min(self.warmup_steps, self.cooldown_steps, *self.milestones, 0) < 0:
            raise ValueError("steps must be at least 1; warm-up, cool-down and milestones must be 0 or more")
        if self.warmup_steps + self.cooldown_steps > self.steps or self.warmup_steps >= self.steps:
            raise ValueError(
                f"warm-up ({self.warmup_steps}) and cool-down ({self.cooldown_steps}) do not fit into the {self.steps} "
                "steps of this schedule; shorten one of them"
            )

    def stretched(self, ratio: float) -> StepSchedule:
        """Return this schedule with all numbers of steps times `ratio`, rounded. Raises UsageError if none are left."""
        try:
            return replace(
                self,
                steps=round(self.steps * ratio),
                warmup_steps=round(self.warmup_steps * ratio),
                cooldown_steps=round(self.cooldown_steps * ratio),
                milestones=tuple(round(milestone * ratio) for milestone in self.milestones),
            )
        except ValueError as error:
            raise UsageError(f"{self.steps} steps at {ratio:g} of their number: {error}.") from None

    @property
    def decay_steps(self) -> int:
        """Return the steps in which the rate falls: those after the warm-up, or trapezoid's cool-down."""
        falling = {"constant": 0, "trapezoid": self.cooldown_steps}
        return falling.get(self.kind, self.steps - self.warmup_steps)

    def factor(self, step: float) -> float:
        """Return the factor of the peak learning rate for the step after `step` steps; a warm-up starts at 0."""
        return _factor(self, step, self.steps, self.warmup_steps, self.cooldown_steps, self.milestones)


def _factor(
    curve: Schedule | StepSchedule,
    at: float,
    length: float,
    warmup: float,
    cooldown: float,
    milestones: Sequence[float],
) -> float:
    """Evaluate one curve at one point; all lengths in the unit of `at`."""
    if at < warmup:
        return max(at, 0.0) / warmup  # linear, from exactly 0
    final, progress = curve.final_factor, _fraction((at - warmup) / (length - warmup))
    match curve.kind:
        case "cosine":  # half of one (Loshchilov and Hutter, arXiv 1608.03983)
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":  # with a warm-up, a one-cycle triangle
            return 1 + (final - 1) * progress
        case "polynomial":
            return float(final + (1 - final) * (1 - progress) ** curve.power)
        case "multistep":  # a milestone counts from the moment it names
            return float(curve.milestone_factor ** sum(at >= milestone - ROUNDING for milestone in milestones))
        case "trapezoid":  # warm-up, stable, linear decay
            return 1 + (final - 1) * _fraction(1 - (1 - progress) / (cooldown / (length - warmup)))
    return 1.0


def _fraction(value: float) -> float:
    return min(max(value, 0.0), 1.0)
