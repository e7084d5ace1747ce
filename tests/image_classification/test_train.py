"""The run itself: warm-up without a trace, the clock before the data, exact counts, accumulation, methods in effect."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from image_classification import CARD, data
from image_classification.configs import ImageRunConfig, digits_methods, synthetic_smoke
from image_classification.train import accuracy, synthetic_batches, train
from mlevents import keys, record
from mlevents.runlog import RunLog
from timedrun.methods import EMA, NoEffect, ProgressiveResizing
from timedrun.precision import Precision
from timedrun.progress import Progress
from timedrun.ranks import Ranks
from timedrun.run import TimedRun

ALONE = Ranks(0, 1, 0, torch.device("cpu"))


def run_of(config: ImageRunConfig, log: RunLog) -> TimedRun:
    return TimedRun(config, CARD, ALONE, log, platform="1xCPU", progress=Progress("test", shown=False))


def losses_of(config: ImageRunConfig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loss of every training step of a run."""
    seen: list[float] = []
    original: Callable[..., None] = TimedRun.step_done
    with monkeypatch.context() as patch:

        def step_done(self: TimedRun, samples: int, loss: torch.Tensor) -> None:
            seen.append(float(loss))
            original(self, samples, loss)

        patch.setattr(TimedRun, "step_done", step_done)
        with run_of(config, RunLog(None)) as run:
            train(config, run)
    return seen


def test_the_losses_of_a_run_are_the_same_with_and_without_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(synthetic_smoke(), evaluation=replace(synthetic_smoke().evaluation, target=0.99))
    without = losses_of(replace(config, warm_up_steps=0), monkeypatch)
    assert len(without) == 16
    assert without == losses_of(replace(config, warm_up_steps=3), monkeypatch)


def test_run_start_is_on_disk_before_the_data_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result_0.txt"

    def refuse(*arguments: Any, **options: Any) -> None:
        assert record.read(path).started is not None
        raise OSError("no data today")

    monkeypatch.setattr(data, "open_source", refuse)
    config = synthetic_smoke()
    with pytest.raises(OSError, match="no data today"), run_of(config, RunLog(path)) as run:
        train(config, run)
    assert record.read(path).status == keys.ABORTED


def test_gradient_accumulation_gives_the_gradients_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    base = synthetic_smoke()
    # Batch norm sees the micro-batch, so that only a network without its noise can be compared to the last digit.
    config = replace(base, methods=(), evaluation=replace(base.evaluation, target=0.99))
    monkeypatch.setattr(torch.nn, "BatchNorm2d", torch.nn.InstanceNorm2d)
    whole = losses_of(config, monkeypatch)
    parts = losses_of(replace(config, micro_batch=24), monkeypatch)
    assert parts == pytest.approx(whole, rel=1e-4)


def test_an_evaluation_that_misses_images_is_an_error() -> None:
    config = synthetic_smoke()
    opened = data.ImageData(config.data, None, ALONE, global_batch=64, seed=1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 10))
    precision = Precision("fp32", ALONE.device)
    assert 0 <= accuracy(model, opened, precision, ALONE, 128) <= 1
    with pytest.raises(RuntimeError, match="evaluation saw 128 images, but the set has 129"):
        accuracy(model, opened, precision, ALONE, 129)


def test_accuracy_counts_every_image_once() -> None:
    config = replace(synthetic_smoke().data, synthetic_eval=101, eval_batch=7)
    opened = data.ImageData(config, None, ALONE, global_batch=64, seed=1)
    labels = torch.cat([batch.labels for batch in opened.evaluation()])

    class Always(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full((len(images),), 3), 10).float()

    share = accuracy(Always(), opened, Precision("fp32", ALONE.device), ALONE, 101)
    assert share == pytest.approx((labels == 3).sum().item() / 101)


def test_a_method_that_never_acted_fails_the_run_instead_of_counting(tmp_path: Path) -> None:
    config = replace(synthetic_smoke(), methods=(EMA(half_life=10, update_interval=10_000),))
    with pytest.raises(NoEffect, match="ema"), run_of(config, RunLog(tmp_path / "result_0.txt")) as run:
        train(config, run)
    assert record.read(tmp_path / "result_0.txt").status == keys.ABORTED


def test_warm_up_sees_every_input_size_of_the_run() -> None:
    base = synthetic_smoke()
    resizing = ProgressiveResizing(start=0.5, delay=0.0, finetune=0.2, increment=4)
    config = replace(base, methods=(resizing,), schedule=replace(base.schedule, epochs=10), warm_up_steps=1)
    evaluation, *epochs = [epoch for epoch, _ in synthetic_batches(config, ALONE, 4, 3)]
    assert evaluation == 0
    assert {resizing.sizes(16, [(e - 1) / 10 for e in range(1, 11)])[e - 1] for e in epochs} == {8, 12, 16}
    assert len(epochs) == 3


@pytest.mark.timeout(100)
def test_digits_methods_reach_their_target(tmp_path: Path) -> None:
    config = replace(digits_methods(), seed=11)
    with run_of(config, RunLog(tmp_path / "result_0.txt")) as run:
        train(config, run)
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.SUCCESS
    assert log.final_quality is not None
    assert log.final_quality >= config.evaluation.target
    assert log.value(keys.EVAL_SAMPLES) == 900
