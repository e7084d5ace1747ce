"""The host never waits for the device within a training step; no test needs a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.steps import CASES, write_tiny_shards
from timedrun.evidence.analysis.profiled_run import ProfiledRun, StepPlan, profiled
from timedrun.runner.benchmark import find
from timedrun.runner.config_choice import config_of

pytestmark = pytest.mark.timeout(300)
aten = torch.ops.aten


class Synchronisations(TorchDispatchMode):
    """Record operators whose results the host needs: on a GPU it would wait for the device."""

    WAITING = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.equal)
    INDEXING = (aten.index, aten.index_put, aten.index_put_)

    def __init__(self) -> None:
        super().__init__()
        self.recording = False
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = func.overloadpacket
        masks = operator in self.INDEXING and any(one is not None and one.dtype == torch.bool for one in args[1])
        if self.recording and (masks or operator in self.WAITING):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


Waiting = Callable[..., list[str]]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """Return a function that trains five steps of a config and returns the operators that wait in the last four."""

    def one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
        return torch.eye(classes, dtype=torch.int64)[labels]

    monkeypatch.setattr("torch.nn.functional.one_hot", one_hot)  # torch's checks the labels on the host, on a CPU alone

    def operators(benchmark: str, name: str, data: str, *overrides: str, folder: Path | None = None) -> list[str]:
        mode, original, steps = Synchronisations(), ProfiledRun.step_done, 0

        def step_done(self: ProfiledRun, samples: int, loss: torch.Tensor) -> None:
            nonlocal steps
            mode.recording = False  # the run shows a loss at intervals
            original(self, samples, loss)
            mode.recording, steps = True, steps + 1

        monkeypatch.setattr(ProfiledRun, "step_done", step_done)
        config = config_of(find(benchmark), name, data, ["--precision", "bf16", *overrides])
        plan = StepPlan(positions=(0.5,), chunks=1, chunk=3, skip=2, timed=False, evaluate=False)
        with mode:
            profiled(find(benchmark), config, plan, data_folder=folder)
        assert steps == 5
        return mode.found

    return operators


@pytest.mark.parametrize("name", ["baseline", "methods"])
def test_a_step_of_images_never_waits_for_the_device(waiting, name):
    assert waiting("image_classification", name, "digits") == []


def test_a_step_of_bert_never_waits_for_the_device(waiting):
    assert waiting("language_model", "methods", "topics", "--speed.attention", "sdpa_padded") == []


def test_a_step_of_gpt_never_waits_for_the_device(waiting, tmp_path):
    write_tiny_shards(tmp_path / "shards")
    tiny = f"{CASES['fineweb'].tiny} {CASES['fineweb'].tiny_of['methods']}".split()
    assert waiting("fineweb", "methods", "fineweb", *tiny, folder=tmp_path / "shards") == []
