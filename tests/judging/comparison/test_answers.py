"""Answers of trade-off curves: the first config at a quality, the best at a budget; nothing beyond measured points."""

import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from judging.comparison import answers
from judging.comparison.answers import Budget, at_budget, at_quality
from judging.comparison.tradeoff import Curve
from judging.ground.errors import UsageError
from judging.pages import answer_table
from judging.pages.answer_table import best, headline, own_quality, sentence


@dataclass(frozen=True)
class Run:
    minutes: float
    final_quality: float

    @property
    def path(self) -> Path:
        return Path(f"{self.minutes}")


@pytest.fixture(autouse=True)
def higher_is_better(monkeypatch) -> None:
    monkeypatch.setattr(answers, "direction", lambda runs: 1.0)


def curve(
    label: str, lengths: dict[float, float], seeds: int = 4, noise: float = 0.0, speed: float = 1.0, **facts: Any
) -> Curve:
    """A curve of quality log2(minutes) / 10 after `lengths` in minutes by ratio, times what each seed takes longer."""
    drawn = random.Random(label)
    slow = [math.exp(drawn.gauss(0, noise)) / speed for _ in range(seeds)]
    budgets = {
        ratio: {seed: Run(minutes * slow[seed], math.log2(minutes) / 10) for seed in range(seeds)}
        for ratio, minutes in lengths.items()
    }
    return Curve(label=label, budgets=budgets, **facts)


LENGTHS = {0.5: 4.0, 1.0: 8.0, 2.0: 16.0}
BASE = curve("base", LENGTHS, noise=0.01)


def test_the_time_to_a_quality_and_the_quality_at_a_time_are_those_of_a_known_function():
    exact = curve("base", LENGTHS)
    (answer,) = at_quality([exact], 0.25)  # log2(minutes) / 10
    assert answer.minutes.value == pytest.approx(2**2.5)
    (answer,) = at_budget([exact], Budget.parse("6min"))
    assert answer.quality.value == pytest.approx(math.log2(6) / 10)


def test_the_first_is_named_with_how_many_times_sooner_over_shared_seeds():
    answers = at_quality([BASE, curve("fast", LENGTHS, noise=0.01, speed=2)], 0.25)
    winner = best(answers)
    assert winner.label == "fast"
    low, high = winner.sooner.bounds or (0, 0)
    assert low < 2 < high and low > 1.8
    assert sentence(answers, 0.25, winner).endswith(" sooner") and "; base 342" in sentence(answers, 0.25, winner)


def test_nothing_is_said_beyond_the_measured_points_but_why(monkeypatch):
    late = curve("late", {1.0: 64.0})
    answers = at_quality([BASE, late], 0.25)
    assert answers[1].minutes is None and "shorter one would show" in answers[1].why
    assert "perhaps sooner, in shorter runs than were measured: late" in sentence(answers, 0.25, best(answers))
    assert at_quality([BASE], 0.9)[0].why == "not reached: at most 0.4 was measured"
    answers = at_budget([BASE, late], asked := Budget.parse("8min"))
    assert answers[1].quality is None and "a length of about x0.13 would show it" in answers[1].why
    assert sentence(answers, asked, best(answers)).endswith("; not known there: late")
    said = sentence(answers, Budget.parse("1s"), best(at_budget([BASE], Budget.parse("1s"))))
    assert said.endswith("nothing was measured there, and nothing is extrapolated")
    monkeypatch.setattr("judging.comparison.answers.direction", lambda runs: -1.0)
    assert at_quality([BASE], 0.1)[0].why == "not reached: at least 0.2 was measured"


def test_a_run_that_has_the_quality_earlier_bounds_the_time():
    quick = {1.0: {seed: Run(1.0, 0.5) for seed in range(4)}}
    answers = at_quality([BASE, Curve(label="quick", budgets=quick)], 0.25)
    winner = best(answers)
    assert winner.label == "quick"
    assert "quick at most 60.0 s" in sentence(answers, 0.25, winner)
    slow = {1.0: {0: Run(1.0, 0.5), 1: Run(1.0, 0.2)}, 2.0: {0: Run(2.0, 0.6), 1: Run(2.0, 0.3)}}
    assert "60 s, by 1 of 2 seeds: a shorter" in at_quality([Curve(label="slow", budgets=slow)], 0.25)[0].why


def test_a_quality_that_some_seeds_miss_has_no_time():
    lucky = {r: {s: Run(m, q + 0.2 * (s == 1)) for s in range(4)} for r, m, q in ((1.0, 4.0, 0.2), (2.0, 8.0, 0.21))}
    assert at_quality([BASE, Curve(label="lucky", budgets=lucky)], 0.3)[1].why == "reached only by 1 of 4 seeds"


def test_money_buys_time_on_each_configs_own_system():
    cheap, dear = curve("cheap", LENGTHS, hourly=6.0), curve("dear", LENGTHS, hourly=12.0)
    answers = at_budget([cheap, dear], Budget.parse("1usd"))
    assert [answer.quality and round(answer.quality.value, 4) for answer in answers] == [0.3322, 0.2322]
    with pytest.raises(UsageError, match="needs the price of an hour; give it by --price"):
        at_budget([BASE], Budget.parse("1usd"))
    with pytest.raises(UsageError, match="'4 days' is none"):
        Budget.parse("4 days")


def shifted(label: str, points: dict[float, tuple[float, float]], lucky: dict[int, float] | None = None) -> Curve:
    """A curve of four seeds through `points` (minutes, quality) by ratio; `lucky` seeds have so much more quality."""
    of = {
        ratio: {seed: Run(minutes * (1 + seed / 1000), quality + (lucky or {}).get(seed, 0.0)) for seed in range(4)}
        for ratio, (minutes, quality) in points.items()
    }
    return Curve(label=label, budgets=of)


def test_of_curves_that_cross_each_is_the_best_at_its_own_budgets():
    steep = shifted("steep", {0.5: (4.0, 0.1), 1.0: (8.0, 0.3), 2.0: (16.0, 0.5)})
    flat = shifted("flat", {0.5: (4.0, 0.25), 1.0: (8.0, 0.3), 2.0: (16.0, 0.35)})
    for budget, first in (("5min", "flat"), ("14min", "steep")):
        answers = at_budget([steep, flat], Budget.parse(budget))
        assert best(answers).label == first


def test_a_win_on_one_seed_is_no_difference_shown():
    points = {0.5: (4.0, 0.2), 1.0: (8.0, 0.3), 2.0: (16.0, 0.4)}
    answers = at_budget([shifted("base", points), shifted("lucky", points, {2: 0.08})], Budget.parse("10min"))
    winner = best(answers)
    assert winner.label == "lucky"
    assert "(no difference shown)" in sentence(answers, Budget.parse("10min"), winner)


def test_a_baseline_that_had_a_tenth_of_the_time_is_beaten_nowhere():
    short = curve("base", {0.5: 0.4, 1.0: 0.8, 2.0: 1.6})
    answers = at_quality([short, BASE], 0.25)
    assert "base not reached: at most 0.06781 was measured" in sentence(answers, 0.25, best(answers))
    assert answers[1].sooner is None and " sooner" not in sentence(answers, 0.25, best(answers))
    assert sentence([*reversed(answers)], 0.25, answers[1]).endswith("; not known there: base")
    answers = at_budget([short, BASE], asked := Budget.parse("8min"))
    assert answers[1].better is None and "a length of about x10 would show it" in sentence(answers, asked, answers[1])


def test_the_headline_names_the_config_that_has_the_baselines_quality_in_half_the_time(monkeypatch):
    """At the mean of the seeds' qualities half of its seeds would have to be extrapolated."""
    monkeypatch.setattr(answer_table, "direction", lambda runs: 1.0)
    points, uneven = {0.5: (4.0, 0.2), 1.0: (8.0, 0.3)}, {0: 0.01, 1: -0.01}
    half = {ratio: (minutes / 2, quality) for ratio, (minutes, quality) in points.items()}
    said = headline([shifted("base", points, uneven), shifted("half", half, uneven)])
    assert said.startswith("to 0.29: half ") and said.endswith("; 2.00x [1.86, 2.15] sooner")
    numbers = replace(shifted("base", points), unit="")  # 1.0 is then no multiple of its own length
    longer = {1.0: (4.0, 0.2), 2.0: (8.0, 0.3)}
    assert own_quality([numbers]) == own_quality([replace(shifted("base", longer), unit="")]) == 0.3
    assert "\x1b" not in headline([shifted("\x1b[31m", points), shifted("half", half)])


def test_intervals_hold_the_truth_in_nineteen_of_twenty():
    held = better = 0
    for number in range(120):
        pair = [curve(f"{name} {number}", {0.5: 4.0, 2.0: 16.0}, 5, 0.2) for name in ("base", "other")]
        (_, answer) = at_quality(pair, 0.3)
        low, high = answer.sooner.bounds or (0, 0) if answer.sooner else (0, 0)
        held += low <= 1 <= high
        (_, answer) = at_budget(pair, Budget.parse("8min"))
        low, high = answer.better.bounds or (0, 0) if answer.better else (1, 1)
        better += low <= 0 <= high
    for covered in (held, better):
        assert 120 * 0.95 - covered < 3 * math.sqrt(120 * 0.95 * 0.05)
