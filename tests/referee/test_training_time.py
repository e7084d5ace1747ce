"""Times with renumbered tokens and without: other load is told from a script that needs longer, and an excess from
chance."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from judging.ground.errors import ExitCode
from referee.sandbox import Tally
from referee.series import Series
from referee.session import Session
from referee.training_time import MOST_PAIRS, Allowance, TrainingTime, judged
from referee.verdict import Finding, Verdict

ALLOWED = Allowance(1.25, 2.0)
Pair = tuple[TrainingTime, TrainingTime]


def took(seconds: float, waited: float = 0.0, others: float = 0.0) -> TrainingTime:
    return TrainingTime(seconds, 1.0, waited, others, processors=2)


def judged_of(*pairs: Pair) -> tuple[Finding, int]:
    """Return the finding on the first pair, and how many of the others were asked for."""
    asked = []

    def again() -> Pair:
        asked.append(pairs[1 + len(asked)])
        return asked[-1]

    return judged(ALLOWED, pairs[0], again, "renumbered tokens"), len(asked)


def test_times_within_the_limit_need_no_repetition_and_the_limit_is_printed():
    finding, repeated = judged_of((took(3.24), took(3.68)))
    assert (finding.passed, repeated) == (True, 0)
    said = "3.24 s with renumbered tokens and 3.68 s without; the longer may take 6.05 s: 1.25 x the shorter + 2 s"
    assert finding.reason == said


@pytest.mark.parametrize(("later", "undecided"), [((0.3, 6.4), False), ((0.3, 0.3), True)])
def test_a_training_with_renumbered_tokens_that_is_much_faster_is_as_suspicious_as_a_slower_one(later, undecided):
    finding, repeated = judged_of(
        (took(0.28), took(6.39)), *[(took(later[0]), took(later[1] + n / 10)) for n in range(5)]
    )
    assert (finding.passed, finding.undecided, repeated) == (False, undecided, 3)
    assert ("a later training could know the first" in finding.reason) == undecided


def test_runs_of_which_one_takes_much_longer_than_another_are_undecided():
    times = [56.91, 3.76, 4.75, 4.83]
    runs = [Verdict("0" * 64, True, [], seconds, 2.0 + seconds / 999, standard_error=0.1) for seconds in times]
    judged = Series(runs, 2.2)
    assert judged.exit_code is ExitCode.INCONCLUSIVE
    assert "56.91 s in run 1 and 3.76 s in run 2, of 6.70 s allowed" in judged.sentence
    runs[0] = replace(runs[0], waited_seconds=53.0)  # other processes explain it
    assert Series(runs, 2.2).exit_code is not ExitCode.INCONCLUSIVE


def test_waits_of_one_process_after_another_add_up():
    looks = [{1: 0.5}, {1: 0.5, 2: 2.0}, {1: 0.5, 2: 2.5}, {1: 1.0, 3: 4.0}]
    tallies = iter(Tally(1, 1, 0, 0.0, waited) for waited in looks)
    session = Session.__new__(Session)
    session._sandbox, session._waits, session._waited = SimpleNamespace(tally=lambda: next(tallies)), {}, 0.0
    assert [session.load().waited for _ in looks] == [0.5, 2.5, 3.0, 7.0]


@pytest.mark.parametrize(("planted", "real"), [(7.92, 4.45), (5.41, 1.35)])
def test_a_wait_for_a_core_that_others_used_is_not_the_scripts_time(planted, real):
    pair = took(planted, waited=planted / 2, others=planted), took(real)
    finding, repeated = judged_of(pair)
    assert (finding.passed, repeated) == (True, 0)
    assert f"({planted:.2f} s - {planted / 2:.2f} s of waits for other processes) with renumbered" in finding.reason


def test_a_wait_that_the_scripts_own_threads_caused_is_its_time():
    slow: Pair = took(20, waited=19, others=0.1), took(1)
    finding, repeated = judged_of(*[slow] * 9)
    assert (finding.passed, finding.undecided, repeated) == (False, False, 3)
    assert "in 3 more pairs 6.1" in finding.reason and "times what is allowed; other" in finding.reason


def test_an_excess_that_does_not_come_again_is_no_reason():
    finding, repeated = judged_of((took(20), took(1)), *[(took(1 + n / 10), took(1)) for n in range(3)])
    assert (finding.passed, repeated) == (True, 3)


def test_times_that_vary_beyond_the_limit_are_undecided_and_other_load_is_named():
    times = [4, 40, 1.5, 9, 3, 2, 2]
    pairs: Iterator[Pair] = ((took(seconds, others=1.2 * seconds), took(1, others=1.2)) for seconds in times)
    finding, repeated = judged_of(*pairs)
    assert (finding.passed, finding.undecided, repeated) == (False, True, MOST_PAIRS)
    assert "other processes used 60 % of the processors" in finding.reason
    verdict = Verdict("0" * 64, True, [finding])
    assert (verdict.exit_code, verdict.failed, verdict.as_json()["accepted"]) == (ExitCode.INCONCLUSIVE, [], False)
    assert verdict.sentence.startswith("undecided: same time") and "other processes used 60 %" in verdict.sentence
    assert any("undecided" in line for line in verdict.lines(None))


def test_a_breach_decides_whatever_else_is_undecided():
    undecided = Finding("same time", False, "times vary", undecided=True)
    verdict = Verdict("0" * 64, True, [undecided, Finding("rows", False, "differ")])
    assert verdict.exit_code is ExitCode.ERROR and verdict.sentence == "rejected: rows"
