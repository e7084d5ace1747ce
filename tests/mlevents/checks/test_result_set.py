"""The checks across a set find copies, repeated seeds, wrong counts and runs that do not belong together."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents.checks.copies import MOST_HOLDERS, candidate_pairs, copied, equal_quality
from mlevents.checks.result_set import check_set
from mlevents.record import QualityPoint, read
from mlevents.summary import cold_start_excess as excess
from mlevents.summary import cold_start_share as share
from mlevents.summary import summarize
from tests.mlevents.conftest import named, put


@pytest.fixture
def make_set(make_records, write):
    """make_set(count, **facts): `count` records with seeds from 1; `change` may alter one run's records in place."""

    def make(count=5, change=None, **facts):
        runs = [make_records(seed=seed, **facts) for seed in range(1, count + 1)]
        if change is not None:
            change(runs)
        return [summarize(read(write(records, f"result_{number}.txt"))) for number, records in enumerate(runs)]

    return make


def found(records):
    """The findings but the one on convergence, which a whole set always has."""
    return [finding for finding in check_set(records, "2.0.0") if finding.rule != "convergence"]


def rules(records):
    return [(finding.level, finding.rule) for finding in found(records)]


ACCURACIES = (0.3, 0.5, 0.6, 0.7, 0.76)


def differ(runs):
    """Every run has its own quality values."""
    for number, run in enumerate(runs):
        for record in run:
            if record["key"] == "eval_accuracy":
                record["value"] += number * 1e-4


def moved_and_edited(runs):
    """The second log is the first again: an hour later, under its own seed, every quality changed a little."""
    runs[1] = [{**record, "time_ms": record["time_ms"] + 3_600_000} for record in runs[0]]
    put(runs[1], "seed", 2)
    differ(runs)


def moved_and_edited_of_a_second(runs):
    """Short runs on a quiet machine: evaluations a tenth of a second apart have the same milliseconds by chance."""
    moved_and_edited(runs)
    for run in runs:
        start = next(record["time_ms"] for record in run if record["key"] == "run_start")
        length = run[-1]["time_ms"] - start
        for record in run:
            record["time_ms"] = start + round((record["time_ms"] - start) * 1000 / length)


def in_seconds(runs):
    differ(runs)
    for record in (record for run in runs for record in run):
        record["time_ms"] -= record["time_ms"] % 1000


def with_equal_quality(runs):
    """All but the last quality of the first and the fourth run are the same."""
    for position, run in enumerate(runs):
        for record in [record for record in run if record["key"] == "eval_accuracy"][:-1]:
            record["value"] += 0.01 * (position if position != 3 else 0)


def started_at_once(equal):
    """So many runs start in one millisecond."""

    def change(runs):
        for records in runs[:equal]:
            shift = named(runs[0], "run_start")["time_ms"] - named(records, "run_start")["time_ms"]
            for record in records:
                record["time_ms"] += shift

    return change


def with_two_seeds(runs):
    """The first log has the seed of the second as well."""
    place = runs[0].index(named(runs[0], "seed"))
    runs[0].insert(place, {**runs[0][place], "value": 2})


DIGITS, CURVE = {"dataset": "digits"}, {"accuracies": ACCURACIES}
SETS = {
    "whole": (None, {}, []),
    "a run too few": (None, {"count": 4}, [("error", "run-count")]),
    "a run too many": (None, {"count": 6}, [("error", "run-count")]),
    "few of a demonstration": (None, {"count": 2, **DIGITS}, [("warning", "run-count")]),
    "many of a demonstration": (None, {"count": 6, **DIGITS}, []),
    "moved in time and edited": (moved_and_edited, CURVE, [("error", "copied-log")]),
    "a demonstration, moved and edited": (moved_and_edited, CURVE | DIGITS, [("error", "copied-log")]),
    "equal by chance": (moved_and_edited_of_a_second, CURVE, []),
    "times in seconds": (in_seconds, CURVE, []),
    "equal quality": (with_equal_quality, CURVE, [("warning", "copied-log")]),
    "three starts in a millisecond": (started_at_once(3), {}, [("error", "same-start")]),
    "two starts in a millisecond": (started_at_once(2), {}, []),
    "the seed of another run among its own": (with_two_seeds, {}, [("warning", "repeated-seed")]),
    "an empty log": (lambda runs: runs[4].clear(), {}, []),
    "a whole number as a float": (lambda runs: put(runs[2], "global_batch_size", 64.0), {}, []),
}


@pytest.mark.parametrize(("change", "facts", "expected"), SETS.values(), ids=SETS)
def test_a_set_has_the_findings_of_its_kind_and_no_others(make_set, change, facts, expected):
    assert rules(make_set(change=change, **facts)) == expected


def test_any_number_of_copies_or_of_equal_runs_is_one_finding_without_what_follows_from_it(make_set):
    def copied(runs):
        for number in (1, 2, 4):
            runs[number][:] = [dict(record) for record in runs[0]]
        put(runs[4], "seed", 77)

    (finding,) = found(make_set(change=copied))  # not their seeds and starts
    assert (finding.level, finding.rule) == ("error", "copied-log")
    assert finding.message.startswith("result_0.txt, result_1.txt, result_2.txt, result_4.txt are identical")
    (finding,) = found(make_set(accuracies=ACCURACIES))
    assert (finding.level, finding.rule) == ("warning", "copied-log")
    assert all(f"result_{number}.txt" in finding.message for number in range(5))


def test_a_repeated_seed_is_an_error_that_names_its_runs(make_set):
    (finding,) = found(make_set(change=lambda runs: put(runs[4], "seed", 2)))
    assert (finding.level, finding.rule) == ("error", "repeated-seed")
    assert "seed 2 is used by result_1.txt, result_4.txt" in finding.message


@pytest.mark.parametrize(
    ("key", "value"),
    [("submission_benchmark", "bert"), ("global_batch_size", 128), ("dataset", "cifar10"), ("quality_target", 0.7)],
)
def test_runs_of_another_configuration_do_not_belong(make_set, key, value):
    findings = found(make_set(change=lambda runs: put(runs[2], key, value), dataset="digits"))
    assert [(finding.rule, key in finding.message) for finding in findings] == [("one-configuration", True)]
    assert "result_2.txt" in findings[0].message


def test_a_long_copy_is_found_where_the_sketch_keeps_a_part_only(make_set):
    def change(runs):
        runs[3] = [dict(record) for record in runs[1]][:-200]
        put(runs[3], "seed", 4)

    summaries = make_set(change=change, accuracies=(*(0.1 + 0.004 * step for step in range(150)), 0.76))
    assert len(summaries[1].sketch) == 512 < summaries[1].events
    assert rules(summaries).count(("error", "copied-log")) == 1


def test_one_run_that_missed_the_target_may_be_dropped_with_its_settings_and_two_may_not(make_set):
    def missed(*numbers, quality=0.7, count=5):
        def change(runs):
            put(runs[numbers[0]], "global_batch_size", 128)
            for record in (record for number in numbers for record in runs[number]):
                if record["key"] == "eval_accuracy":
                    record["value"] = quality

        return found(make_set(count, change=change))

    (finding,) = missed(2)
    assert (finding.level, finding.rule) == ("warning", "run-dropped")
    said = "result_2.txt ended at 0.7, but its target is 0.759; a score may drop it as the slowest run"
    assert finding.message == said
    assert [finding.rule for finding in missed(2, 1)] == ["one-configuration"]
    assert "result_2.txt ended at 0.7589999, but its target is 0.759;" in missed(2, quality=0.7589999)[0].message
    assert "run-dropped" not in {finding.rule for count in (1, 2) for finding in missed(0, count=count)}  # no score


def test_a_cold_first_epoch_is_told_by_its_share_of_which_evaluation_is_no_part(make_set):
    def summary(after, *left_out):
        def change(runs):
            runs[0][:] = [record for record in runs[0] if record["key"] not in left_out]
            late = False
            for record in runs[0]:
                late = late or record["key"] == after
                record["time_ms"] += 60_000 * late

        return make_set(1, change=change, accuracies=(0.3, 0.5, 0.76))[0]

    cold = summary("epoch_stop")
    assert cold.first_epoch_share == pytest.approx(1 / cold.minutes)
    assert summary("eval_stop", "epoch_start", "epoch_stop").first_epoch_share == 0.0
    assert make_set(1, accuracies=(0.76,))[0].first_epoch_share is None


def test_a_block_that_the_end_of_the_run_cuts_off_is_not_what_the_first_one_is_measured_by(make_set):
    def change(runs):
        (run,) = runs
        run[:] = [record for record in run if not record["key"].startswith("epoch_")]
        block = [record for record in run if record["key"].startswith("block_")]
        run[-1:-1] = [record | {"time_ms": run[-1]["time_ms"]} for record in block]

    assert make_set(1, change=change, accuracies=(0.76,))[0].first_epoch_share is None


def test_another_hyper_parameter_in_one_run_is_a_warning_and_an_equal_number_of_another_type_none(make_set):
    def change(runs):
        for number, run in enumerate(runs):
            rates = [11, 11, 14.0, 11.0, 11]
            run.insert(9, {**run[8], "key": "lars_opt_base_learning_rate", "value": rates[number]})

    (finding,) = found(make_set(change=change))
    assert (finding.level, finding.rule) == ("warning", "two-settings")
    assert finding.message == "lars_opt_base_learning_rate is 11 in 4 logs, 14.0 in result_2.txt"


@pytest.fixture
def summary(records, write):
    return summarize(read(write(records)))


# Few values, so that many logs share some, and more of the same log than of another.
POINTS = st.lists(
    st.builds(
        QualityPoint,
        minutes=st.sampled_from([0.1234, 0.2, 0.34567, 0.5]),
        progress=st.integers(1, 12).map(float),
        value=st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    ),
    max_size=14,
)
SKETCH = st.frozensets(st.integers(0, 40), max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(POINTS, SKETCH), max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 14))),
    st.data(),
)
def test_no_pair_with_a_finding_is_left_out(summary, contents, copies, data):
    for of, length in copies[:4]:  # parts of the others, as an edited copy has
        if of < len(contents):
            contents.append((contents[of][0][:length], contents[of][1] & data.draw(SKETCH)))
    logs = []
    for seed, (quality, sketch) in enumerate(contents):
        changes = {"quality": tuple(quality), "sketch": sketch, "seeds": (seed,)}
        logs.append(replace(summary, **changes, is_demonstration=data.draw(st.booleans())))
    pairs = candidate_pairs(logs)
    found = {(a, b) for a, b in combinations(logs, 2) if copied(a, b) or equal_quality(a, b)}
    order = [(a.seed, b.seed) for a, b in pairs]
    assert found <= set(pairs) and order == sorted(set(order))


def test_logs_without_anything_in_common_but_popular_values_are_not_compared(summary):
    logs = [replace(summary, quality=(), sketch=frozenset({number})) for number in range(1000)]
    assert candidate_pairs(logs) == []

    def quality(number):
        plateau = [(0.1 * epoch, epoch, 0.1) for epoch in range(4)]
        own = [(0.4 + 0.1 * epoch, 4.0 + epoch, number + 0.1 * epoch) for epoch in range(6)]
        return tuple(QualityPoint(minutes + number * 1e-3, *rest) for minutes, *rest in (*plateau, *own))

    logs = [replace(summary, quality=quality(n), sketch=frozenset(), seeds=(n,)) for n in range(200)]
    assert candidate_pairs(logs) == []


def test_each_of_many_copies_is_compared_with_the_first(summary):
    first, *others = [replace(summary, seeds=(number,)) for number in range(5 * MOST_HOLDERS)]
    pairs = candidate_pairs([first, *others])
    assert {b for a, b in pairs if a == first} == set(others)
    assert len(pairs) < MOST_HOLDERS**2 / 2 + len(others)


def test_the_first_stretch_is_held_to_the_median_pace_of_the_later_ones():
    stretches = [(20.0, 50.0), (10.0, 10.0), (10.0, 30.0), (5.0, 10.0)]  # later: 1, 3 and 2 a unit
    assert excess(stretches) == 50.0 - 20 * 2.0
    assert share(stretches, 100.0) == pytest.approx(0.1)
    assert (excess([(1.0, 1.0), (1.0, 2.0)]), share([(1.0, 1.0), (1.0, 2.0)], 3.0)) == (-1.0, 0.0)
    for senseless in ([], [(1.0, 3.0)], [(0.0, 1.0), (1.0, 1.0)], [(1.0, 1.0), (0.0, 1.0)]):
        assert excess(senseless) is share(senseless, 2.0) is None
    for later in (1.0, math.inf):
        assert share([(1.0, math.inf), (1.0, later)], 2.0) is share([(1.0, later), (1.0, 1.0)], 0.0) is None
