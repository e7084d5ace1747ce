"""A step's checkpoint counts only where every rank has it whole, and what is not whole is never counted on. What ranks
hold alike is found bit for bit, and put back where it was."""

import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from judging.ground import atomic_file
from judging.ground.errors import TimedrunError
from tests.timedrun.runner.distributed.thread_ranks import on_all
from tests.timedrun.runner.run.killed_run import ALONE
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.run import checkpoint_file, checkpoint_manager, replicated_state
from timedrun.runner.run.checkpoint_manager import (
    CheckpointManager,
    checkpoint_path,
    discard_newer,
    newest_on_all,
    steps_in,
)
from timedrun.runner.run.replicated_state import checksums, merge, split


def about(step: int, rank: int) -> dict[str, Any]:
    return {"run": "a1", "position": {"step": step}, "rank": rank}


def content(step: int, rank: int) -> dict[str, Any]:
    """A checkpoint with all inside, as one rank saves it, and as versions before the replicated files did."""
    return about(step, rank) | {"state": state(step, rank)}


def state(step: int, rank: int) -> dict[str, Any]:
    return {"weights": torch.full((1000,), float(step)), "own": [torch.full((1000,), float(rank)), 0.5]}


def save_all(folder: Path, steps: list[int], world_size: int = 2) -> list[list[str | None]]:
    """Save after each of `steps` on all ranks; what each rank was told."""

    def body(ranks: ProcessGroup) -> list[str | None]:
        saved = CheckpointManager(folder, ranks, 0.0, lambda: 0.0)
        return [saved.save(step, partial(state, step, ranks.rank), partial(about, step, ranks.rank)) for step in steps]

    return on_all(world_size, body)


def newest(folder: Path, world_size: int = 2) -> list[Any]:
    """Step and rank of what each rank finds, or its error."""

    def whole(ranks: ProcessGroup) -> tuple[int, int]:
        own = newest_on_all(folder, ranks)
        step, rank = own["position"]["step"], own["rank"]
        expected = state(step, ranks.rank)
        assert torch.equal(own["state"]["weights"], expected["weights"])
        assert torch.equal(own["state"]["own"][0], expected["own"][0]) and own["state"]["own"][1] == 0.5
        return step, rank

    return on_all(world_size, whole)


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def test_each_rank_keeps_the_newest_two_and_equal_tensors_are_saved_once(tmp_path):
    assert save_all(tmp_path, [10, 20, 30, 40]) == [[None] * 4] * 2
    assert newest(tmp_path) == [(40, 0), (40, 1)]
    assert sorted(steps_in(tmp_path / "replicated_0")) == [30, 40]
    assert not (tmp_path / "replicated_1").exists()
    replicated = checkpoint_file.load(checkpoint_path(tmp_path / "replicated_0", 40))
    assert list(replicated["tensors"]) == ["state['weights']"]
    for rank in (0, 1):
        assert sorted(steps_in(tmp_path / f"rank_{rank}")) == [30, 40]
        own = checkpoint_file.load(checkpoint_path(tmp_path / f"rank_{rank}", 40))
        assert own["state"]["weights"] is None and own["replicated"] == ["state['weights']"]
        assert own["state"]["own"][0][0] == rank


@pytest.mark.parametrize("when", ["before the file has its name", "after that"])
def test_the_old_stay_until_the_new_is_everywhere(tmp_path, monkeypatch, when):
    save_all(tmp_path, [10, 20])
    owner, name = (atomic_file, "fsync_folder") if when == "after that" else (checkpoint_file, "save")
    original = getattr(owner, name)

    def fails_on_rank_1(path: Path, *state: Any) -> None:
        if path.name == "rank_1":
            raise OSError(5, "Input/output error")
        if path.parent.name == "rank_1":
            raise checkpoint_file.CheckpointError("was not written") from OSError(5, "Input/output error")
        original(path, *state)

    monkeypatch.setattr(owner, name, fails_on_rank_1)
    assert save_all(tmp_path, [30]) == [["rank 1: Input/output error"]] * 2
    for rank in (0, 1):
        assert sorted(steps_in(tmp_path / f"rank_{rank}")) == [10, 20]
    assert newest(tmp_path) == [(20, 0), (20, 1)]


def replicated(folder: Path, **changes: Any) -> None:
    path = checkpoint_path(folder / "replicated_0", 20)
    checkpoint_file.save(path, checkpoint_file.load(path) | changes)


def rank_0(folder: Path, step: int, content: dict[str, Any]) -> None:
    checkpoint_file.save(checkpoint_path(folder / "rank_0", step), content)


NOT_USED = "after step 20 is missing or damaged; the step was not used"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "replicated state absent": (lambda at: checkpoint_path(at / "replicated_0", 20).unlink(), NOT_USED),
    "replicated state damaged": (lambda at: damage(checkpoint_path(at / "replicated_0", 20)), NOT_USED),
    "replicated state of another run": (lambda at: replicated(at, run="b2"), NOT_USED),
    "replicated state of another step": (lambda at: replicated(at, step=10), NOT_USED),
    "replicated state of other tensors": (lambda at: replicated(at, tensors={}), NOT_USED),
    "one rank's damaged": (lambda at: damage(checkpoint_path(at / "rank_1", 20)), "step_00000020.pt"),
    "one rank's absent": (lambda at: checkpoint_path(at / "rank_1", 20).unlink(), ""),
    "no step": (lambda at: rank_0(at, 20, {"position": 20}), "step_00000020.pt does not name its run and step"),
    "another step": (
        lambda at: rank_0(at, 20, content(40, 0)),
        "step_00000020.pt holds the state after step 40, contrary to its name",
    ),
    "another rank": (
        lambda at: shutil.copy(checkpoint_path(at / "rank_0", 20), checkpoint_path(at / "rank_1", 20)),
        "step_00000020.pt is of rank 0, in the folder of rank 1",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_one_rank_lacks_or_has_damaged_is_passed_over_on_all(tmp_path, fault, capsys):
    save_all(tmp_path, [10, 20], 3)
    spoil, words = FAULTS[fault]
    spoil(tmp_path)
    assert newest(tmp_path, 3) == [(10, rank) for rank in range(3)]
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("has", [(), (0,), (1,)])
def test_without_a_common_step_every_rank_raises(tmp_path, has):
    for rank in has:
        checkpoint_file.save(checkpoint_path(tmp_path / f"rank_{rank}", 10), content(10, rank))
    for error in newest(tmp_path):
        assert isinstance(error, TimedrunError) and "cannot be resumed" in str(error)


@pytest.mark.parametrize("alien", [0, 1])
def test_a_checkpoint_of_another_run_is_refused_on_all_ranks_and_nothing_is_changed(tmp_path, alien):
    save_all(tmp_path, [10, 20])
    other = content(20, alien) | {"run": "b2"}
    checkpoint_file.save(checkpoint_path(tmp_path / f"rank_{alien}", 20), other)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*.pt"))
    for error in newest(tmp_path):
        assert isinstance(error, TimedrunError)
        assert "the checkpoint after step 20 of rank 1 is of another run than rank 0's" in str(error)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*.pt"))


def test_an_old_file_that_cannot_be_removed_ends_no_run(tmp_path, monkeypatch):
    save_all(tmp_path, [10, 20])
    busy = MagicMock(side_effect=OSError(16, "Device or resource busy"))
    monkeypatch.setattr(checkpoint_manager, "discard", busy)
    assert save_all(tmp_path, [30]) == [[None]] * 2 and busy.called
    assert newest(tmp_path) == [(30, 0), (30, 1)]


def test_the_interval_begins_at_the_end_of_the_last_checkpoint_and_no_step_is_saved_twice(tmp_path):
    now = [0.0]
    saved = CheckpointManager(tmp_path, ALONE, 2.0, lambda: now[0])
    now[0] = 500.0  # building and compiling
    saved.start(None)
    assert not saved.due
    now[0] += 119.0
    assert not saved.due
    now[0] += 1.0
    assert saved.due

    def slow() -> dict[str, Any]:
        now[0] += 300.0
        return about(1, 0)

    saved.save(1, partial(state, 1, 0), slow)
    assert not saved.due
    assert saved.save(1, lambda: pytest.fail("was asked for again"), dict) is None
    assert not CheckpointManager(None, ALONE, 1e-9, lambda: now[0]).due
    never = CheckpointManager(tmp_path, ALONE, 0.0, lambda: now[0])
    never.start(None)
    now[0] += 1e9
    assert not never.due


def test_checkpoints_after_the_resumed_step_and_then_the_drafts_of_a_killed_writer_are_removed(tmp_path):
    save_all(tmp_path, [10])
    checkpoint_file.save(checkpoint_path(tmp_path / "rank_0", 30), content(30, 0))
    on_all(2, lambda ranks: discard_newer(tmp_path, ranks, 10))
    assert sorted(steps_in(tmp_path / "rank_0")) == [10]
    (tmp_path / "rank_0" / "step_00000020.pt.draft").write_bytes(b"half")
    save_all(tmp_path, [20])
    assert sorted(os.listdir(tmp_path / "rank_0")) == ["step_00000010.pt", "step_00000020.pt"]


def state_of(rank: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 5, 66)).sum().backward()
    optimizer.step()
    torch.manual_seed(rank)
    random = [torch.get_rng_state(), (1, "a")]
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random}


def test_weights_and_moments_but_not_random_generators_are_split_off_and_merged_as_they_were():
    states = [state_of(0), state_of(1)]  # here, since the ranks' threads share one generator
    replicas = on_all(2, lambda ranks: split(states[ranks.rank], ranks))
    for own, tensors in replicas:
        assert set(tensors) == {
            "state['model']['0.weight']",
            "state['model']['2.weight']",
            *(f"state['optimizer']['state'][{n}]['{m}']" for n in (0, 4) for m in ("exp_avg", "exp_avg_sq")),
        }
        assert own["model"]["0.weight"] is None and own["random"][1] == (1, "a")
    merged, whole = merge(*replicas[1]), state_of(1)
    assert type(merged["model"]) is OrderedDict
    assert merged["model"]._metadata == whole["model"]._metadata
    assert all(torch.equal(merged["model"][name], tensor) for name, tensor in whole["model"].items())
    assert torch.equal(merged["random"][0], whole["random"][0])
    assert torch.equal(merged["optimizer"]["state"][4]["exp_avg"], whole["optimizer"]["state"][4]["exp_avg"])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.complex64]
)
def test_a_bit_or_an_order_that_differs_changes_the_checksum(dtype, monkeypatch):
    monkeypatch.setattr(replicated_state, "COLUMNS", 64)  # several rows
    tensor = (torch.arange(400) % 7).reshape(20, 20).to(dtype)
    swapped, changed = tensor.clone(), tensor.clone()
    swapped[0, 0], swapped[19, 19] = tensor[0, 1], tensor[0, 0]
    changed[10, 3] = tensor[10, 3] == 0
    found = checksums([tensor, tensor.T.contiguous().T, swapped, changed])
    assert found[0] == found[1]
    assert found[0] != found[2] and found[0] != found[3]
