"""Comparison of repeated runs with the original ones."""

import json
import statistics
from collections.abc import Callable, Sequence

import pytest

from judging.scoring.recorded_run import RecordedRun, recorded_run_of
from mlevents import keys
from timedrun.evidence.submission.reproduction.repetition import compare_runs
from timedrun.evidence.submission.reproduction.set_verdict import SetVerdict

Course = tuple[float, ...]
SHORT: Course = (0.3, 0.6, 0.761)
LONG: Course = (0.3, 0.6, 0.7, 0.761)


@pytest.fixture
def make_runs(tmp_path, write_run) -> Callable[..., list[RecordedRun]]:
    """Writes results of so many minutes and such courses, on one machine or another."""

    def make(name, minutes, courses, *, processor="one", data="d1", threads=1, **logged):
        folder = tmp_path / name
        for number, (time, course) in enumerate(zip(minutes, courses, strict=True)):
            write_run(folder, number, minutes=time, qualities=course, **logged)
            side = folder / f"run_{number}"
            side.mkdir()
            (side / "system.json").write_text(json.dumps({"host_processor_model_name": processor}))
            (side / "environment.txt").write_text("numpy==1\n")
            origin = {"ranks": 1, "threads": threads, "data": {"sha256": data}}
            (side / "provenance.json").write_text(json.dumps(origin))
        return [recorded_run_of(folder / f"result_{number}.txt") for number in range(len(minutes))]

    return make


def judged(old: list[RecordedRun], new: Sequence[RecordedRun | None]) -> SetVerdict:
    return compare_runs(
        "set", [(a, b or a, "" if b else "the run ended with exit code 1") for a, b in zip(old, new, strict=True)]
    )


def test_equal_runs_on_the_same_machine_are_reproduced(make_runs):
    old = make_runs("old", (10, 11, 12), [SHORT] * 3)
    verdict = judged(old, make_runs("new", (10.1, 10.9, 12.1), [SHORT] * 3))
    assert verdict.reproduced and verdict.same_machine
    assert (verdict.quality, verdict.to_target, verdict.courses_equal) == ("equal", "equal", 3)
    assert verdict.quality_sentence == (
        "Quality: reproduced, 3 of 3 runs reach the target (epochs to target equal; 3 with equal quality at every"
        " evaluation)."
    )
    assert verdict.time_sentence.startswith("Time (unverified): 1.00x ")
    assert verdict.time_sentence.endswith("on equal hardware, threads and versions as far as recorded.")
    values = json.loads(json.dumps(verdict.as_dict()))
    assert (values["reproduced"], values["time_verdict"]) == (True, "not slower")


def test_slower_runs_on_other_hardware_are_reproduced_with_their_ratio_and_interval(make_runs):
    old = make_runs("old", (10, 11, 12), [SHORT] * 3)
    verdict = judged(old, make_runs("new", (13.1, 14.2, 16.0), [SHORT] * 3, processor="two"))
    assert verdict.reproduced and verdict.time is not None
    expected = statistics.geometric_mean((1.31, 14.2 / 11, 16 / 12))
    assert 1 / verdict.time.value == pytest.approx(expected, rel=1e-3)
    assert f"{expected:.2f}x slower [" in verdict.time_sentence
    assert "not comparable: other hardware (host_processor_model_name)." in verdict.time_sentence
    assert verdict.time_verdict == "not comparable"
    assert "hardware old -> new: host_processor_model_name: one -> two" in verdict.text


@pytest.mark.parametrize(
    ("then", "given", "words"),
    [
        (1, 0, "not comparable: 1 thread then, 2 now."),
        (1, 2, "not comparable: 1 thread then, 2 now (--threads 2)."),
        (None, 0, "not comparable: threads not recorded then, 2 now."),
    ],
)
def test_other_threads_make_times_not_comparable(make_runs, then, given, words):
    (old,), (new,) = make_runs("old", (1,), [SHORT], threads=then), make_runs("new", (8.75,), [SHORT], threads=2)
    verdict = compare_runs("set", [(old, new, "")], threads=given)
    assert verdict.reproduced and not verdict.same_machine
    assert verdict.time_sentence == f"Time (unverified): 8.75x slower (too few runs for an interval); {words}"


def test_slower_times_on_the_same_machine_are_named_and_do_not_decide(make_runs):
    halved = make_runs("old", (5, 5.5, 6), [SHORT] * 3)
    again = make_runs("new", (10.1, 10.9, 12.1), [SHORT] * 3)
    verdict = judged(halved, again)
    assert verdict.reproduced and verdict.time_verdict == "slower"
    assert "2.01x slower [1.95, 2.06]; on equal hardware" in verdict.time_sentence
    assert "The original times are not reproduced." in verdict.time_sentence
    for original in halved:  # on an unknown machine
        original.system.unlink()
    verdict = judged(halved, again)
    assert verdict.reproduced and "other hardware (description)" in verdict.time_sentence


def test_a_run_that_is_not_reproduced_is_named_with_its_reason(make_runs):
    old, new = make_runs("old", (10, 11, 12), [SHORT] * 3), make_runs("new", (10.1, 10.9, 12.1), [SHORT] * 3)
    edited = make_runs("edited", (10, 11, 12), [SHORT, (0.3, 0.65, 0.761), SHORT])
    assert judged(edited, new).failures == (
        "the logged quality of run 1 is not reproduced, although that of 2 others is, to every digit (quality"
        " differs from epoch 2 on: originally 0.65000 at epoch 2, now 0.60000 at epoch 2)",
    )
    worse = make_runs("worse", (10,), [(0.3, 0.6, 0.7)], processor="two")
    verdict = judged(old[:2], [new[0], *worse])
    assert verdict.quality == "differs" and not verdict.reproduced and verdict.contradicted
    assert "1 did not reach its target now, but reached it originally (quality 0.70000, 0.76100)" in verdict.sentence
    verdict = judged(old, [*new[:2], None])
    assert verdict.courses_equal == 2 and verdict.time is not None and not verdict.reproduced
    assert "run 2 could not be repeated: the run ended with exit code 1" in verdict.sentence
    assert "(2 of 3 runs repeated)" in verdict.sentence
    never = judged(old, [None] * 3)
    assert not never.contradicted and never.sentence.startswith("Quality: not run: run 0 could not be repeated")


@pytest.mark.parametrize(
    ("courses", "agreement"),
    [([LONG, SHORT, SHORT, LONG], "within the spread"), ([(*LONG[:-1], *LONG)] * 4, "differs")],
)
def test_samples_to_target_agree_within_a_spread(make_runs, courses, agreement):
    old = make_runs("old", (10, 11, 12, 13), [SHORT, LONG, SHORT, LONG])
    verdict = judged(old, make_runs("new", (10, 11, 12, 13), courses, processor="two"))
    assert verdict.to_target == agreement
    assert verdict.reproduced == (agreement != "differs")
    assert ("epochs to target" if verdict.reproduced else "epoch to target differ") in verdict.sentence


def test_runs_that_are_not_repeated_add_to_the_spread(make_runs):
    first, *rest = make_runs("old", (10, 11, 12, 13), [SHORT, LONG, SHORT, LONG])
    (new,) = make_runs("new", (10,), [LONG], processor="two")
    assert compare_runs("set", [(first, new, "")], rest).to_target == "within the spread"
    assert compare_runs("set", [(first, new, "")]).to_target == "differs"


def test_different_data_explain_different_samples_to_target(make_runs):
    old = make_runs("old", (10, 11), [SHORT] * 2, **{keys.CONFIG_DIGEST: "a"})
    verdict = judged(old, make_runs("new", (10, 11), [LONG] * 2, data="d2", **{keys.CONFIG_DIGEST: "b"}))
    assert "The data differ, so samples to target need not agree." in verdict.sentence
    assert verdict.differs["origin"]["data"] == ["d1", "d2"]
    assert verdict.differs["origin"]["config_digest"] == ["a", "b"]
