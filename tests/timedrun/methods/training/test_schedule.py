"""Learning-rate curves: published run lengths, and what holds for every curve. Their docstrings have points of each."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, get_args

import pytest

from judging.ground.errors import UsageError
from timedrun.methods.training.schedule import Kind, Schedule, StepSchedule


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


@pytest.mark.parametrize("kind", get_args(Kind))
def test_steps_follow_the_same_curves_as_epochs(kind):
    cooldown = 9 if kind == "trapezoid" else 0
    more: dict[str, Any] = {"final_factor": 0.1, "milestones": (30, 60) if kind == "multistep" else ()}
    steps = StepSchedule(kind=kind, steps=90, warmup_steps=8, cooldown_steps=cooldown, **more)
    epochs = Schedule(kind, epochs=90, warmup_epochs=8, cooldown_epochs=cooldown, **more)
    factors = [steps.factor(at) for at in range(95)]
    assert factors == [epochs.factor(at) for at in range(95)]
    assert factors[0] == 0 and factors[8] == 1 and factors[:9] == sorted(factors[:9])
    assert factors[8:] == sorted(factors[8:], reverse=True)
    assert factors[90] == pytest.approx(1 if kind == "constant" else 0.1**2 if kind == "multistep" else 0.1)
    if kind != "multistep":
        assert steps.decay_steps == sum(after < before - 1e-9 for before, after in pairwise(factors))


@pytest.mark.parametrize(
    ("schedule", "settings", "words"),
    [
        (Schedule, {"epochs": 1, "scale": 0.9}, "shorter than one epoch"),
        (Schedule, {"warmup_epochs": 6.0, "scale": 0.5}, "do not fit into the 5 epochs"),
        (Schedule, {"warmup_epochs": -1.0}, "0 or more"),
        (Schedule, {"scale": float("nan")}, "finite"),
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
