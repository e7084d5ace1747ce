"""Times of training alone and optimizer steps, from logs written event by event."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judging.pages import score_table
from judging.scoring import score as scores
from judging.scoring.clocks import optimizer_steps, start_up
from mlevents import keys
from mlevents.record import read
from mlevents.rounds import RULESETS
from mlevents.runlog import RunLog
from mlevents.summary import RunSummary, summarize

LETTERS = {"B": keys.BLOCK_START, "b": keys.BLOCK_STOP, "E": keys.EVAL_START, "e": keys.EVAL_STOP}


def timed(path: Path, events: str, *extra: tuple[str, Any, dict[str, Any]]) -> RunSummary:
    """Write a log whose timed region has `events`, each a minute after the one before, and end it a minute later; a
    letter that the log has no event for is a minute only."""
    now = [1.8e9]
    with closing(RunLog(path, clock=lambda: now[0], durable=False)) as log:
        log.start(keys.RUN_START)
        for letter in events:
            now[0] += 60
            if letter in LETTERS:
                (log.start if letter in "BE" else log.end)(LETTERS[letter])
        for key, value, metadata in extra:
            log.event(key, value, **metadata)
        now[0] += 60
        log.end(keys.RUN_STOP, status=keys.SUCCESS)
    return summarize(read(path))


@pytest.mark.parametrize(
    ("events", "minutes"),
    [
        ("BEeb", 2),  # evaluation within a block; the minute before the block is none of training
        ("B.Eeb.BEeb", 5),  # nor is the one between blocks
        ("BbEeBbEe", 2),  # evaluation after a block
        ("BEbeB.b", 3),  # an evaluation that outlasts its block
        ("EBeb", 1),  # or begins before it
        ("BEeb..B..", 5),  # a block that is open at run_stop
        ("BEe", 2),
        *((events, None) for events in ("Ee", "bBb", "BBb", "BbEeb", "Bbb")),  # starts or stops are missing
    ],
)
def test_the_speedruns_clock_runs_in_blocks_and_stops_for_evaluations(events, minutes, tmp_path):
    assert timed(tmp_path / "result_0.txt", events).block_minutes == minutes
    resumed = timed(tmp_path / "result_1.txt", events, (keys.RESUMED, 7, {}))
    assert resumed.block_minutes is None, "its blocks include the interruption"


def test_steps_are_the_runs_own_count(tmp_path):
    counts = [(keys.TRACKED_STATS, {"throughput": 1.0}, {keys.STEP: step}) for step in (390, 780)]
    assert timed(tmp_path / "result_0.txt", "BEeb", *counts).steps is None  # of another project, it may be anything
    digest = (keys.CONFIG_DIGEST, "0" * 64, {})
    assert timed(tmp_path / "result_1.txt", "BEeb", digest, *counts).steps == 780


@pytest.mark.parametrize(
    ("benchmark", "logged", "steps"),
    [
        # CIFAR-10 at batch 128: 390 steps an epoch, since the last 80 of 50,000 samples fill no batch. 22 epochs are
        # 8,580 steps, not the 8,594 of 22 * 50,000 / 128.
        ("resnet", {keys.TRAIN_SAMPLES: 50_000, keys.GLOBAL_BATCH_SIZE: 128, "qualities": [0.1] * 21 + [0.94]}, 8580),
        ("bert", {keys.GLOBAL_BATCH_SIZE: 448, "qualities": [0.1, 0.72]}, 2 / 448),
        ("resnet", {keys.GLOBAL_BATCH_SIZE: None}, None),
    ],
)
def test_steps_of_other_logs_follow_from_progress_and_batch(benchmark, logged, steps, tmp_path, write_run):
    run = summarize(read(write_run(tmp_path, 0, benchmark=benchmark, dataset="toy", **logged)))
    expected = None if steps is None else round(steps)
    assert optimizer_steps(run, RULESETS["2.0.0"].benchmarks[benchmark]) == expected


def test_a_score_has_all_clocks_side_by_side(tmp_path, write_set):
    write_set(tmp_path, [1, 2, 3, 4, 5])
    (one,) = scores.score([tmp_path])
    # Evaluating takes the last tenth of every block, and nothing lies between blocks.
    assert one.speedrun_runs == pytest.approx([0.9, 1.8, 2.7, 3.6, 4.5]) and one.speedrun_minutes == pytest.approx(2.7)
    assert one.score_minutes == pytest.approx(3.0) and one.mean == pytest.approx(3.0)
    assert one.steps_runs == [3 * (1_281_167 // 64)] * 5 and one.steps == 60_054 and not one.steps_counted
    shown = score_table.table([one], detailed=True)
    assert "  score    3.000 min (unverified)\n" in shown
    assert "mean 2.700 min of training alone, no MLPerf time (unverified)\n" in shown
    assert "mean 60,054.0 optimizer steps, computed from progress and batch, without incomplete batches\n" in shown


def test_published_runs_without_starts_of_blocks_have_no_speedrun_time(published_sample):
    found = scores.score([*published_sample.values()])
    assert len(found) == 4
    for one in found:
        assert set(one.speedrun_runs) == {None} and one.speedrun_minutes is None
        assert "  speedrun - (no complete blocks of training in the logs)\n" in score_table.table([one], detailed=True)
        # ResNet in whole epochs of 625 batches of 2,048, BERT evaluated every 55 batches of 448.
        multiple = 625 if one.benchmark == "resnet" else 55
        assert all(step and step % multiple == 0 for step in one.steps_runs)


def test_a_start_up_of_more_than_half_of_a_run_is_named(tmp_path):
    run = timed(tmp_path / "result_0.txt", "-BEe")  # a minute before the first block, of five
    assert run.minutes == 5 and run.startup_minutes == 2 and start_up([run]) == ""
    begun = replace(run, init_minutes=4.0)
    assert "start-up is 67% of a run: 240 s before the clock and 120 s on it, of 540 s" in start_up([begun, begun])
    assert start_up([replace(run, minutes=None)]) == ""
