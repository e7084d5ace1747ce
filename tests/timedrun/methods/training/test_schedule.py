"""Learning-rate curves: published run lengths, and what holds for every curve. Their docstrings have points of each."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.ground.errors import UsageError
from timedrun.methods.training.schedule import Kind, Schedule, StepSchedule


@pytest.mark.parametrize(
    "curve",
    [
        *(StepSchedule(kind=kind, steps=40, warmup_steps=7) for kind in ("constant", "cosine", "linear", "polynomial")),
        StepSchedule(kind="trapezoid", steps=40, warmup_steps=7, cooldown_steps=11),
    ],
)
def test_decay_steps_are_those_in_which_the_rate_falls(curve):
    factors = [curve.factor(step) for step in range(curve.steps + 1)]
    assert curve.decay_steps == sum(after < before for before, after in pairwise(factors))


def test_scaled_lengths_of_published_runs_and_where_floats_are_off():
    lengths = {(90, 0.32): 28, (90, 0.36): 32, (90, 0.75): 67, (90, 2.6): 234, (100, 0.29): 29, (10, 0.7): 7}
    for (epochs, scale), expected in lengths.items():
        assert Schedule("cosine", epochs, scale=scale).epochs_scaled == expected
    assert [Schedule("cosine", 90, scale=epochs / 90).epochs_scaled for epochs in range(1, 300)] == [*range(1, 300)]
    with pytest.raises(UsageError, match="10 steps at 0.01 of their number: steps must be at least 1"):
        StepSchedule(kind="linear", steps=10).stretched(0.01)


@pytest.mark.parametrize("batches", [7, 10, 390, 625, 1251])
def test_a_milestone_is_reached_at_the_first_step_that_starts_there(batches):
    """Steps by exact fractions of the decimals, for positions in epochs as a training loop computes them."""
    for epochs in range(1, 100, 2):
        for hundredths in range(4, 260, 8):
            milestone = Fraction(epochs) * Fraction(hundredths, 100)
            first = math.ceil(milestone * batches)
            schedule = Schedule("multistep", 200, scale=hundredths / 100, milestones=(epochs,))
            factors = [schedule.factor(step // batches + step % batches / batches) for step in (first - 1, first)]
            assert factors == [1.0, 0.1], (epochs, hundredths)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    kind = draw(st.sampled_from(get_args(Kind)))
    epochs = draw(st.integers(2, 300))
    scale = draw(st.sampled_from([1.0, 0.5, 0.75, 1.3, 2.6]))
    length = int(epochs * scale)
    return Schedule(
        kind,
        epochs,
        warmup_epochs=draw(st.floats(0, 0.45)) * length,
        final_factor=draw(st.floats(0, 1)),
        scale=scale,
        scale_warmup=scale < 1 and draw(st.booleans()),
        milestones=(0.3 * epochs, 0.8 * epochs) if kind == "multistep" else (),
        cooldown_epochs=0.4 * length / scale if kind == "trapezoid" else 0.0,
    )


@given(schedules())
def test_every_curve_rises_through_warm_up_then_never_rises_within_bounds(schedule):
    length = schedule.epochs_scaled
    points = [length * step / 400 for step in range(441)]
    factors = [schedule.factor(point) for point in points]
    assert all(0 <= factor <= 1 + 1e-12 for factor in factors)
    rising = [factor for point, factor in zip(points, factors, strict=True) if point < schedule.warmup_epochs_scaled]
    falling = factors[len(rising) :]
    assert rising == sorted(rising)
    assert all(later <= earlier + 1e-12 for earlier, later in zip(falling, falling[1:], strict=False))
    if schedule.warmup_epochs_scaled > 0:
        assert factors[0] == 0.0
    if schedule.kind in ("cosine", "linear", "polynomial", "trapezoid"):
        assert schedule.factor(length) == pytest.approx(schedule.final_factor, abs=1e-9)
    if schedule.kind != "multistep":
        steepest = 1 / max(min(schedule.warmup_epochs_scaled or length, 0.35 * length), 1e-9) * length / 400 * 2
        jumps = [abs(later - earlier) for earlier, later in zip(factors, factors[1:], strict=False)]
        assert max(jumps) <= steepest + 1e-9


@pytest.mark.parametrize("kind", get_args(Kind))
def test_steps_follow_the_same_curves_as_epochs(kind):
    cooldown = 9 if kind == "trapezoid" else 0
    more: dict[str, Any] = {"final_factor": 0.1, "milestones": (30, 60) if kind == "multistep" else ()}
    steps = StepSchedule(kind=kind, steps=90, warmup_steps=8, cooldown_steps=cooldown, **more)
    epochs = Schedule(kind, epochs=90, warmup_epochs=8, cooldown_epochs=cooldown, **more)
    assert [steps.factor(at) for at in range(95)] == [epochs.factor(at) for at in range(95)]


@pytest.mark.parametrize(
    ("schedule", "settings", "words"),
    [
        (Schedule, {"epochs": 1, "scale": 0.9}, "shorter than one epoch"),
        (Schedule, {"warmup_epochs": 10.0}, "do not fit into the 10 epochs"),
        (Schedule, {"warmup_epochs": 6.0, "scale": 0.5}, "do not fit into the 5 epochs"),
        (Schedule, {"warmup_epochs": -1.0}, "0 or more"),
        (Schedule, {"scale": float("nan")}, "finite"),
        (Schedule, {"milestones": (3.0,)}, "require multistep"),
        (Schedule, {"kind": "multistep"}, "require multistep"),
        (Schedule, {"kind": "trapezoid"}, "requires trapezoid"),
        (Schedule, {"kind": "trapezoid", "warmup_epochs": 7.0, "cooldown_epochs": 4.0}, "not fit into the 10 epochs"),
        (Schedule, {"kind": "sine"}, "known: constant, cosine"),
        (StepSchedule, {"steps": 0}, "at least 1"),
        (StepSchedule, {"warmup_steps": 10}, "do not fit"),
        (StepSchedule, {"milestones": (3,)}, "milestones require multistep"),
        (StepSchedule, {"cooldown_steps": 3}, "a cool-down requires trapezoid"),
    ],
)
def test_settings_that_mean_nothing_are_refused(schedule, settings, words):
    length = "epochs" if schedule is Schedule else "steps"
    with pytest.raises(ValueError, match=words):
        schedule(**({"kind": "cosine", length: 10} | settings))
