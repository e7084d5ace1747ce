"""Decision on the last side of a race: what holds, what does not, and what the runs cannot tell."""

import pytest

from judging.comparison.quality_test import Quality
from judging.comparison.speedup_ratio import compare
from judging.ground.errors import UsageError
from timedrun.racing.decision import KeepIf, control_words, time_words

FASTER = compare([2.0, 2.1, 2.2, 2.1], [1.0, 1.0, 1.1, 1.0], paired=True)
EQUAL = compare([1.0, 1.1, 1.0, 1.05], [1.01, 1.0, 1.06, 1.0], paired=True)


def quality(no_worse: bool | None) -> Quality:
    """Quality that is shown to be no worse, or worse, or neither."""
    p = {True: 0.01, False: 0.99, None: 0.5}[no_worse]
    return Quality(runs=(4, 4), reached=(4, 4), at_target=False, p=p)


@pytest.mark.parametrize(
    ("condition", "ratio", "held", "decision"),
    [
        ("time < 0.98x and quality", FASTER, True, "keep"),
        ("time < 0.98x and quality", FASTER, False, "discard"),
        ("time < 0.98x and quality", FASTER, None, "inconclusive"),
        ("quality and time<.3", FASTER, True, "discard"),
        ("time < 0.98", EQUAL, False, "inconclusive"),
        ("time < 0.98x", None, True, "inconclusive"),
        ("time < 0.98x and quality", None, False, "discard"),
    ],
)
def test_a_side_is_kept_only_if_every_condition_is_shown(condition, ratio, held, decision):
    assert KeepIf.parsed(condition).decide(ratio, quality(held)) == decision  # type: ignore[arg-type]


NO_CONDITIONS = (
    *("time > 2", "speed", "time < 0.98x or quality", "quality and", "time < 1.2.3", "", "time < 0x"),
    "quality and quality within 1",
)


@pytest.mark.parametrize("text", NO_CONDITIONS)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(UsageError, match="nothing was run"):
        KeepIf.parsed(text)


def test_a_difference_that_was_not_shown_names_the_pairs_that_would_and_a_control_that_differs_is_a_warning():
    shown = time_words(FASTER)
    assert "the second set is 2.05x" in shown and shown.endswith("faster (4 pairs, sign test p = 0.12)")
    shown = time_words(EQUAL)
    assert "no difference shown (4 pairs); about" in shown and shown.endswith(" pairs would show this one")
    assert "WARNING" in control_words(FASTER, 4) and "WARNING" not in control_words(EQUAL, 4)
    assert "cannot be seen with 16 pairs here" in control_words(EQUAL, 16)
