"""What changes give together follows from what each does to the parts of a step alone."""

from dataclasses import replace

import pytest

from judging.comparison.composition import after_the_others, run_seconds, together
from judging.comparison.extrapolation import Position, Rates, Schedule
from judging.ground.errors import UsageError


def rates(config: str, *parts: dict[str, float], evaluation: float = 0.0, steps: int = 1) -> Rates:
    progress = [number / max(1, len(parts) - 1) for number in range(len(parts))]
    positions = [Position(at, sum(of.values()), parts=of) for at, of in zip(progress, parts, strict=True)]
    return Rates(config, positions, evaluation, Schedule(steps, 1))


BASE = rates("base", {"forward": 1.0, "backward": 2.0})


def test_a_second_halving_of_the_same_part_saves_half_of_what_the_first_one_did():
    """The example of MosaicML's methodology: back propagation is 2/3 of a step."""
    half = rates("half", {"forward": 1.0, "backward": 1.0})
    assert 1 - run_seconds(half) / run_seconds(BASE) == pytest.approx(1 / 3)
    assert 1 - run_seconds(together(BASE, [half, half])) / run_seconds(BASE) == pytest.approx(1 / 3 + 1 / 6)
    assert after_the_others(BASE, [half, half]) == pytest.approx([1 / 6, 1 / 6])


def test_savings_in_different_parts_add_up():
    ahead, back = rates("ahead", {"forward": 0.5, "backward": 2.0}), rates("back", {"forward": 1.0, "backward": 1.0})
    assert after_the_others(BASE, [ahead, back]) == pytest.approx([0.5 / 3, 1 / 3])


def test_waits_and_calls_of_methods_add_up_and_shares_of_computing_multiply():
    base = rates("base", {"forward": 2.0, "loading": 1.0}, evaluation=4.0)
    slow = rates("slow", {"forward": 3.0, "loading": 1.5, "method slow": 1.0}, evaluation=6.0)
    fast = rates("fast", {"forward": 1.0, "loading": 1.2, "method fast": 0.5}, evaluation=2.0)
    (at,) = (both := together(base, [slow, fast])).positions
    assert at.parts == pytest.approx({"forward": 1.5, "loading": 1.7, "method slow": 1.0, "method fast": 0.5})
    assert both.evaluation_seconds == pytest.approx(3.0) and run_seconds(both) == pytest.approx(4.7 + 3.0)


def test_a_change_of_one_half_of_the_schedule_leaves_the_other_to_the_next():
    base = rates("base", {"forward": 1.0}, {"forward": 1.0}, steps=10)
    early, late = (rates("e", {"forward": a}, {"forward": b}, steps=10) for a, b in ((0.5, 1.0), (1.0, 0.5)))
    assert run_seconds(together(base, [early, late])) == pytest.approx(5.0), "not 10 * 0.75 * 0.75"


def test_profiles_of_different_schedules_or_batches_are_refused():
    for other in (replace(BASE, schedule=Schedule(2, 1)), replace(BASE, global_batch=2), replace(BASE, positions=[])):
        with pytest.raises(UsageError, match="another schedule or batch than base"):
            together(BASE, [other])
