"""The host never waits for the device within a training step; no test needs a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from language_model.gpt.datasets import synthetic
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
    tiny = "--global-batch 4 --micro-batch 2 --model.layers 2 --model.hidden 32 --model.heads 2 --model.context 128"
    tiny += " --model.vocabulary 257 --model.attention-window 128 --window-warmup-steps 40 --model.value-embeddings 1"
    tiny += " --schedule.steps 40 --schedule.cooldown-steps 16 --data.eval-tokens 512 --no-compile --warm-up-steps 1"
    synthetic(config_of(find("fineweb"), "methods", "fineweb", tiny.split()), tmp_path)
    assert waiting("fineweb", "methods", "fineweb", *tiny.split(), folder=tmp_path) == []


def test_transformers_waits_for_the_device_once_a_forward_pass(waiting):
    assert waiting("language_model", "baseline", "topics") == ["aten._local_scalar_dense.default"] * 4  # of its mask
