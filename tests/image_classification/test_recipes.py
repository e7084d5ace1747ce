"""Configs of recipes: they train and resume on a small store, keep to their budgets, and ramp by epoch or by step."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from image_classification import SPEC, configs, warm_up
from image_classification.build import build
from image_classification.configs import ImageRunConfig, synthetic_smoke
from image_classification.datasets import declared, preflight
from image_classification.settings import DataConfig
from image_classification.stores.manifest import Format
from image_classification.train import train
from mlevents.runlog import RunLog
from tests.image_classification.small_image_data import ALONE
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.methods import ProgressiveResizing
from timedrun.recipes import RECIPES
from timedrun.run import checkpoint_file
from timedrun.run.checkpoint_manager import checkpoint_path
from timedrun.run.progress import Progress
from timedrun.run.timed_run import TimedRun


def config_of(name: str) -> ImageRunConfig:
    config: ImageRunConfig = getattr(configs, f"imagenet_{name}")()
    return config


def small(config: ImageRunConfig) -> ImageRunConfig:
    """Return `config` with a small network, 32 px and 3 steps an epoch on the tests' store, for 2 epochs."""
    data = replace(config.data, train_size=32, eval_resize=20, eval_size=16, eval_batch=6, loader="pillow", workers=0)
    return replace(
        config,
        global_batch=8,
        micro_batch=4,
        precision="fp32",
        model=replace(config.model, layers=(1, 1), widths=(16, 32), classes=2),
        data=data,
        evaluation=replace(config.evaluation, target=0.999),
        max_epochs=2,
        warm_up_steps=1,
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_resumes_to_the_same_weights(
    name: str, prepared: dict[Format, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, stop = small(config_of(name)), ShutdownRequest()
    assert not preflight(config, prepared["jpeg"], 1)
    losses: list[float] = []
    step_done = TimedRun.step_done

    def recorded(run: TimedRun, samples: int, loss: torch.Tensor) -> None:
        losses.append(float(loss))
        stop.signal = signal.SIGTERM if len(losses) == 8 else None  # step 2 of the second run
        step_done(run, samples, loss)

    def run(**options: object) -> None:
        with TimedRun(
            config, SPEC, ALONE, RunLog(None), platform="1xCPU", progress=Progress("test", shown=False),
            data_folder=prepared["jpeg"], **options,  # type: ignore[arg-type]
        ) as one:  # fmt: skip
            train(config, one)

    monkeypatch.setattr(TimedRun, "step_done", recorded)
    run()
    assert len(losses) == 6
    run(stop=stop, checkpoints=tmp_path)
    run(resume_from=checkpoint_file.load(checkpoint_path(tmp_path / "rank_0", 2)))
    assert losses[6:] == losses[:6]


def test_a_budget_out_of_range_is_refused_before_the_run(prepared: dict[Format, Path]) -> None:
    config = replace(small(config_of("mild")), schedule=replace(config_of("mild").schedule, scale=1.0))
    (problem,) = preflight(config, prepared["jpeg"], 1)
    assert "mild is meant for 9 to 66 epochs, not for 90" in problem and "--recipe none" in problem
    assert not preflight(replace(config, recipe="none"), prepared["jpeg"], 1)
    assert "mlid does not exist" in preflight(replace(config, recipe="mlid"), prepared["jpeg"], 1)[0]


def test_progress_moves_by_epochs_or_by_steps() -> None:
    config = replace(synthetic_smoke(), schedule=replace(synthetic_smoke().schedule, epochs=4))
    assert [config.progress(3, done) for done in (0.0, 0.5)] == [0.5, 0.5]
    stepwise = replace(config, progress_unit="step")
    assert [stepwise.progress(3, done) for done in (0.0, 0.5)] == [0.5, 0.625]


def test_a_ramp_by_steps_is_warmed_up_at_every_size_and_needs_a_loader_that_follows() -> None:
    resizing = ProgressiveResizing(start=0.5, delay=0.0, finetune=0.2, increment=1, interpolation="bilinear")
    config = replace(synthetic_smoke(), methods=(resizing,), warm_up_steps=1, progress_unit="step")
    parts = build(config, ALONE, declared(config.data), torch.device("meta"))
    sizes = [
        resizing.sizes(16, [config.progress(epoch, step / 8)])[0]
        for epoch, step, _ in warm_up.train_batches(config, parts, ALONE)
    ]
    assert sizes == list(range(8, 17))
    stored: DataConfig = config_of("mild").data
    loader = replace(config, methods=(replace(resizing, where="loader"),), data=stored)
    assert any("progress_unit step: a loader decodes" in problem for problem in preflight(loader, None, 1))
