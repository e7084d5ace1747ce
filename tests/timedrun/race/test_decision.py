"""Decision on the last side of a race: what holds, what does not, and what the runs cannot tell."""

from dataclasses import replace
from pathlib import Path

import pytest

from judging.comparison.speedup_ratio import compare
from judging.ground.errors import UsageError
from mlevents.record import read
from mlevents.summary import summarize
from timedrun.race.decision import KeepIf, QualityVerdict, control_words, quality_verdict, time_words

FIRST_RUN = Path(__file__).resolve().parents[3] / "results/first_run/result_0.txt"
FASTER = compare([2.0, 2.1, 2.2, 2.1], [1.0, 1.0, 1.1, 1.0], paired=True)
EQUAL = compare([1.0, 1.1, 1.0, 1.05], [1.01, 1.0, 1.06, 1.0], paired=True)


@pytest.mark.parametrize(
    ("condition", "ratio", "held", "decision"),
    [
        ("time < 0.98x and quality", FASTER, True, "keep"),
        ("time < 0.98x and quality", FASTER, False, "discard"),
        ("time < 0.98x and quality", FASTER, None, "inconclusive"),
        ("quality and time<.3", FASTER, True, "discard"),
        ("time < 0.98", EQUAL, False, "inconclusive"),
        ("time < 1.2x", EQUAL, False, "keep"),
        ("quality", None, True, "keep"),
        ("time < 0.98x", None, True, "inconclusive"),
        ("time < 0.98x and quality", None, False, "discard"),
    ],
)
def test_a_side_is_kept_only_if_every_condition_is_shown(
    condition: str, ratio: object, held: bool | None, decision: str
) -> None:
    assert KeepIf.parsed(condition).decide(ratio, QualityVerdict(held, "")) == decision  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["time > 2", "speed", "time < 0.98x or quality", "quality and", "time < 1.2.3"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="nothing was run"):
        KeepIf.parsed(text)


def test_a_difference_that_was_not_shown_names_the_pairs_that_would() -> None:
    assert "the second set is 2.05x" in time_words(FASTER) and time_words(FASTER).endswith("faster")
    assert "no difference shown: about" in time_words(EQUAL) and "pairs would show this one" in time_words(EQUAL)


def test_a_control_that_differs_is_a_warning_and_any_other_gives_the_floor() -> None:
    assert "WARNING" in control_words(FASTER, 4) and "WARNING" not in control_words(EQUAL, 4)
    assert "cannot be seen with 16 pairs here" in control_words(EQUAL, 16)


def test_the_quality_of_runs_that_stop_at_the_target_is_held_if_all_reached_it() -> None:
    summary = summarize(read(FIRST_RUN))
    runs = [replace(summary, seeds=(seed,)) for seed in (1, 2)]
    assert quality_verdict(runs, 0) == QualityVerdict(True, "target reached by 2 of 2 runs")
    assert quality_verdict(runs, 1) == QualityVerdict(False, "target reached by 2 of 3 runs")
    assert quality_verdict([], 2) == QualityVerdict(False, "target reached by 0 of 2 runs")
