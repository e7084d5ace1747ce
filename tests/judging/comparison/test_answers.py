"""Answers of trade-off curves: the first config at a quality, the best at a budget; nothing beyond measured points."""

import math
import random
from dataclasses import dataclass
from typing import Any

import pytest

from judging.comparison import answers, tradeoff
from judging.comparison.answers import Budget, at_budget, at_quality
from judging.comparison.tradeoff import Curve
from judging.ground.errors import UsageError
from judging.pages.answer_table import best, report, sentence
from judging.scoring.cost import Cost


@dataclass(frozen=True)
class Run:
    minutes: float
    final_quality: float


@pytest.fixture(autouse=True)
def higher_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (answers, tradeoff):
        monkeypatch.setattr(module, "direction", lambda runs: 1.0)


def curve(label: str, lengths: dict[float, float], seeds: int = 4, noise: float = 0.0, **facts: Any) -> Curve:
    """A curve of quality log2(minutes) / 10 after `lengths` in minutes by ratio, times what each seed takes longer."""
    drawn = random.Random(label)
    slow = [math.exp(drawn.gauss(0, noise)) for _ in range(seeds)]
    budgets: Any = {
        ratio: {seed: Run(minutes * slow[seed], math.log2(minutes) / 10) for seed in range(seeds)}
        for ratio, minutes in lengths.items()
    }
    return Curve(label=label, budgets=budgets, **facts)


def twice_as_fast(label: str, noise: float = 0.0) -> Curve:
    made = curve(label, {0.5: 4.0, 1.0: 8.0, 2.0: 16.0}, noise=noise)
    faster: Any = {
        ratio: {seed: Run(run.minutes / 2, run.final_quality or 0.0) for seed, run in runs.items() if run.minutes}
        for ratio, runs in made.budgets.items()
    }
    return Curve(label=label, budgets=faster)


BASE = curve("base", {0.5: 4.0, 1.0: 8.0, 2.0: 16.0}, noise=0.01)


def test_the_time_to_a_quality_and_the_quality_at_a_time_are_those_of_a_known_function() -> None:
    exact = curve("base", {0.5: 4.0, 1.0: 8.0, 2.0: 16.0})
    (answer,) = at_quality([exact], 0.25)  # log2(minutes) / 10
    assert answer.minutes is not None and answer.minutes.value == pytest.approx(2**2.5)
    (answer,) = at_budget([exact], Budget.parse("6min"))
    assert answer.quality is not None and answer.quality.value == pytest.approx(math.log2(6) / 10)


def test_the_first_is_named_with_how_many_times_sooner_over_shared_seeds() -> None:
    answers = at_quality([BASE, twice_as_fast("fast", 0.01)], 0.25)
    winner = best(answers)
    assert winner is not None and winner.label == "fast" and winner.sooner is not None
    low, high = winner.sooner.bounds or (0, 0)
    assert low < 2 < high and low > 1.9
    assert sentence(answers, 0.25, winner).endswith(" sooner") and "; base 342" in sentence(answers, 0.25, winner)


def test_nothing_is_said_beyond_the_measured_points_but_why() -> None:
    late = curve("late", {1.0: 64.0})
    answers = at_quality([BASE, late], 0.25)
    assert answers[1].minutes is None and "shorter one would show" in answers[1].why
    assert "perhaps sooner, in shorter runs than were measured: late" in sentence(answers, 0.25, best(answers))
    assert at_quality([BASE], 0.9)[0].why == "not reached: at most 0.4 was measured"
    answers = at_budget([BASE, late], Budget.parse("8min"))
    assert answers[1].quality is None and "a length of about x0.13 would show it" in answers[1].why
    lines = "\n".join(report(answers, Budget.parse("1s"), best(at_budget([BASE], Budget.parse("1s"))), 100))
    assert "nothing was measured there, and nothing is extrapolated" in lines


def test_a_run_that_has_the_quality_earlier_bounds_the_time() -> None:
    quick: Any = {1.0: {seed: Run(1.0, 0.5) for seed in range(4)}}
    answers = at_quality([BASE, Curve(label="quick", budgets=quick)], 0.25)
    winner = best(answers)
    assert winner is not None and winner.label == "quick"
    assert "quick at most 60.0 s" in sentence(answers, 0.25, winner)


def test_a_quality_that_some_seeds_miss_has_no_time() -> None:
    lucky: Any = {
        r: {s: Run(m, q + 0.2 * (s == 1)) for s in range(4)} for r, m, q in ((1.0, 4.0, 0.2), (2.0, 8.0, 0.21))
    }
    assert at_quality([BASE, Curve(label="lucky", budgets=lucky)], 0.3)[1].why == "reached only by 1 of 4 seeds"


def test_money_buys_time_on_each_configs_own_system() -> None:
    cheap = curve("cheap", {0.5: 4.0, 1.0: 8.0, 2.0: 16.0}, hourly=Cost(usd=6.0, usd_per_hour=6.0))
    dear = curve("dear", {0.5: 4.0, 1.0: 8.0, 2.0: 16.0}, hourly=Cost(usd=12.0, usd_per_hour=12.0))
    answers = at_budget([cheap, dear], Budget.parse("1usd"))
    assert [answer.quality and round(answer.quality.value, 4) for answer in answers] == [0.3322, 0.2322]
    with pytest.raises(UsageError, match="needs the price of an hour; give it by --price"):
        at_budget([BASE], Budget.parse("1usd"))
    with pytest.raises(UsageError, match="'4 days' is none"):
        Budget.parse("4 days")


def test_intervals_hold_the_truth_in_nineteen_of_twenty() -> None:
    held = 0
    for number in range(300):
        pair = [
            curve(f"base {number}", {0.5: 4.0, 2.0: 16.0}, 5, 0.2),
            curve(f"other {number}", {0.5: 4.0, 2.0: 16.0}, 5, 0.2),
        ]
        (_, answer) = at_quality(pair, 0.3)
        low, high = answer.sooner.bounds or (0, 0) if answer.sooner else (0, 0)
        held += low <= 1 <= high
    assert 300 * 0.95 - held < 3 * math.sqrt(300 * 0.95 * 0.05)
