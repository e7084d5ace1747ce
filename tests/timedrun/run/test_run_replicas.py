"""A run asks whether all ranks hold the same weights where it matters, and ends there if not; its checkpoints are known
by an identity of its own."""

import signal

import pytest

from mlevents import keys, record
from mlevents.runlog import RunLog
from tests.timedrun.run.killed_run import ALONE, Checks, Program, finished, kill_after, kill_in, resume
from timedrun.distributed.failure import ReplicaDivergence
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.run.blocks import Outcome
from timedrun.run.checkpoint_manager import newest_on_all, steps_in
from timedrun.run.replica_check import Replicas


class Asked:
    """The steps at which it was asked, each once; from step `parted` on the ranks' weights differ."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.parted: float = float("inf")

    def at(self, step: int) -> None:
        self.steps.append(step)
        if step >= self.parted:
            raise ReplicaDivergence("rank 1 differs from rank 0")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    recorder = Asked()
    monkeypatch.setattr(Replicas, "require_same", lambda replicas, step: recorder.at(step))
    return recorder


def test_replicas_are_compared_before_the_clock_and_at_every_evaluation(make_run, asked):
    run = make_run(check_every=1)
    finished(run)
    assert run.outcome is Outcome.REACHED
    assert asked.steps == [0, 6, 12]


def test_a_run_whose_ranks_parted_never_reaches_its_target(make_run, asked, tmp_path):
    asked.parted = 7
    with pytest.raises(ReplicaDivergence), make_run(check_every=1) as run:
        Program().train(run)
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.ABORTED and log.stopped is not None
    assert log.stopped.metadata["reason"] == "ReplicaDivergence: rank 1 differs from rank 0"
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [2]


@pytest.mark.parametrize(("why", "parted", "saved"), [("the interval", 2, [1]), ("a signal", 1, [])])
def test_diverged_replicas_are_not_saved(make_run, asked, tmp_path, why, parted, saved):
    asked.parted = parted
    stop = ShutdownRequest()
    stop.signal = signal.SIGTERM if why == "a signal" else None
    minutes = 1e-9 if why == "the interval" else 0.0
    options = {"check_every": 1, "stop": stop, "checkpoints": tmp_path / "checkpoint", "checkpoint_minutes": minutes}
    with pytest.raises(ReplicaDivergence), make_run(**options) as run:
        Program().train(run)
    assert steps_in(tmp_path / "checkpoint" / "rank_0") == saved
    assert asked.steps == list(range(parted + 1))


def test_restored_replicas_are_compared_before_that_is_logged(make_run, asked, tmp_path):
    kill_after(3, make_run, tmp_path, due_at=3)
    asked.steps.clear()
    asked.parted = 3
    with pytest.raises(ReplicaDivergence), resume(make_run, tmp_path) as run:
        Program().train(run)
    assert asked.steps == [3]
    assert not record.read(tmp_path / "result_0.txt").all(keys.RESUMED)


def test_a_run_keeps_its_identity_and_no_other_run_has_it(make_run, tmp_path):
    identities = []
    for name in ("one", "other"):
        (folder := tmp_path / name).mkdir()
        kill_after(3, make_run, folder, due_at=3, log=RunLog(folder / "result_0.txt"))
        first = newest_on_all(folder / "checkpoint", ALONE)
        with pytest.MonkeyPatch.context() as patch:
            Checks(patch, 2, 3)
            kill_in(resume(make_run, folder, check_every=1), Program())
        second = newest_on_all(folder / "checkpoint", ALONE)
        assert second["position"]["step"] > first["position"]["step"]
        assert second["run"] == first["run"] and len(first["run"]) == 32
        identities.append(first["run"])
    assert identities[0] != identities[1]
