"""Image classification runs: warm-up, clock before data, exact counts, accumulation, methods, stores, recipes."""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from image_classification import batches, configs, datasets, train, warm_up
from image_classification.build import Parts, build
from image_classification.datasets import declared, preflight
from judging.ground.errors import DataError
from mlevents import keys, record
from mlevents.runlog import RunLog
from tests.image_classification.small_image_data import FOLDER, data_of, threads
from tests.one_rank import ALONE, recorded_losses, stopped, trained
from timedrun import methods
from timedrun.methods.training.number_formats import emulated
from timedrun.methods.training.precision import Precision
from timedrun.methods.training.sampling import Indices
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.run.timed_run import TimedRun


def parts_of(config: configs.ImageRunConfig) -> Parts:
    return build(config, ALONE, declared(config.data), torch.device("meta"))


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loss of every step of the test's runs."""
    return recorded_losses(monkeypatch)


@pytest.mark.parametrize(("changes", "apart"), [({"warm_up_steps": 3}, 0.0), ({"micro_batch": 24}, 1e-4)])
def test_warm_up_and_micro_batches_leave_the_losses_as_they_are(losses, monkeypatch, changes, apart):
    base = configs.synthetic_smoke()
    data, evaluation = replace(base.data, synthetic_train=192), replace(base.evaluation, target=0.99)
    config = replace(base, data=data, evaluation=evaluation, warm_up_steps=0)
    if "micro_batch" in changes:  # which batch norm sees: only a network without its noise can be compared
        config = replace(config, model=replace(base.model, initialisation="kaiming"), methods=())
        monkeypatch.setattr(torch.nn, "BatchNorm2d", torch.nn.InstanceNorm2d)
    trained(config)
    trained(replace(config, **changes))
    assert len(losses) == 12 and losses[:6] == pytest.approx(losses[6:], rel=apart, abs=0)


def test_run_start_is_on_disk_before_the_data_are_opened(tmp_path, monkeypatch):
    path = tmp_path / "result_0.txt"

    def refuse(*arguments: Any, **options: Any) -> None:
        assert record.read(path).started is not None
        raise OSError("no data today")

    monkeypatch.setattr(batches, "open_source", refuse)
    with pytest.raises(OSError, match="no data today"):
        trained(configs.synthetic_smoke(), RunLog(path))
    assert record.read(path).status == keys.ABORTED


def test_accuracy_counts_every_image_once_and_an_evaluation_that_misses_some_is_an_error():
    config = replace(configs.synthetic_smoke().data, synthetic_eval=101, eval_batch=7)
    opened = data_of(config, global_batch=64)
    labels = torch.cat([batch.labels for batch in opened.evaluation()])
    precision = Precision("fp32", ALONE.device)

    class Always(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full((len(images),), 3), 10).float()

    share = train.accuracy(Always(), opened, precision, ALONE, 101)
    assert share == pytest.approx((labels == 3).sum().item() / 101)
    with pytest.raises(RuntimeError, match="evaluation saw 101 images, but the set has 102"):
        train.accuracy(Always(), opened, precision, ALONE, 102)


def ten_epochs(*chosen: methods.Method, **changes: Any) -> configs.ImageRunConfig:
    """Return the config of a run of 10 epochs with the methods `chosen`, warmed up by one step of each shape."""
    base = configs.synthetic_smoke()
    changes = {"methods": chosen, "warm_up_steps": 1} | changes
    return replace(base, schedule=replace(base.schedule, epochs=10), **changes)


def test_warm_up_sees_every_input_size_of_the_run_once_also_if_rows_alone_differ():
    both = methods.ProgressiveResizing(start=0.5, delay=0.0, increment=1), methods.ColOut(p_row=0.1, p_col=0.5)
    config, sizes = ten_epochs(*both), []
    for epoch, step, batch in warm_up.train_batches(config, parts_of(config), ALONE):
        speed = methods.stack(*both)
        speed.enter(step, config.progress(epoch))
        sizes.append(tuple(speed.batch(batch.images, batch.labels, 10)[0].shape[2:]))
    assert sorted(sizes) == sorted({(int(0.9 * side), side // 2) for side in range(8, 17)})


@pytest.mark.parametrize("method", [methods.SelectiveBackprop(), methods.InfoBatch(start=0.5, end=0.9)])
def test_warm_up_sees_the_batches_that_a_selection_leaves(method):
    config = ten_epochs(method, warm_up_steps=3)
    epochs = {epoch for epoch, _, _ in warm_up.train_batches(config, parts_of(config), ALONE)}
    assert epochs == {1, 6}  # from half of the run on


def test_a_compiled_run_compiles_every_shape_before_the_clock(monkeypatch, tmp_path):
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda model, **options: compile_module(model, backend="eager", **options)
    )
    base = configs.synthetic_smoke()
    config = replace(
        base,
        compile=True,
        model=replace(base.model, layers=(1,), widths=(8,)),
        data=replace(base.data, synthetic_train=128, synthetic_eval=70),
        evaluation=replace(base.evaluation, target=0.99),
        methods=(methods.ProgressiveResizing(start=0.5, delay=0.0, finetune=0.4, increment=8),),
    )
    run = trained(config, RunLog(tmp_path / "result_0.txt"))
    assert run.outcome is Outcome.NOT_REACHED and not record.read(tmp_path / "result_0.txt").all(keys.RECOMPILED)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


RESIZING = methods.ProgressiveResizing(start=0.5, delay=0.2, finetune=0.2, increment=4, where="loader")


def stored(**changes: Any) -> configs.ImageRunConfig:
    """Return the config of a small run on a jpeg store of 30 images, decoded at the size of each epoch."""
    base = configs.synthetic_smoke()
    return replace(
        base,
        dataset="small",
        global_batch=6,
        model=replace(base.model, classes=2),
        data=replace(FOLDER, prefetch=2),
        schedule=replace(base.schedule, epochs=5),
        evaluation=replace(base.evaluation, target=0.999, every=2, first=2),
        methods=(methods.ChannelsLast(), RESIZING),
        **changes,
    )


def test_a_store_cut_in_training_aborts_the_run(prepared, tmp_path, losses, monkeypatch):
    folder = shutil.copytree(prepared["jpeg"], tmp_path / "store")
    (shard,) = (folder / "train").glob("*.jpegs")

    step_done: Callable[..., None] = TimedRun.step_done

    def cut(run: TimedRun, *arguments: Any) -> None:
        step_done(run, *arguments)
        if len(losses) == 3:
            os.truncate(shard, 100)

    monkeypatch.setattr(TimedRun, "step_done", cut)
    with pytest.raises(DataError, match=shard.name):
        trained(stored(), RunLog(tmp_path / "result_0.txt"), data_folder=folder)
    assert record.read(tmp_path / "result_0.txt").status == keys.ABORTED
    assert shard.name in str(record.read(tmp_path / "result_0.txt").stopped)
    assert threads() == []


def test_warm_up_sees_and_augments_every_size_that_is_loaded():
    config = replace(stored(), warm_up_steps=1, methods=(methods.ChannelsLast(), RESIZING, methods.RandAugment()))
    parts, seen = parts_of(config), list[tuple[int, ...]]()

    def augment(images: torch.Tensor, samples: Indices, epoch: int) -> torch.Tensor:
        assert images.dtype == torch.uint8 and len(samples) == 6
        seen.append(tuple(images.shape))
        return images

    parts.methods.augment = augment
    batches = list(warm_up.train_batches(config, parts, ALONE))
    evaluated = {len(batch.images) for batch in warm_up.evaluation_batches(config, parts, ALONE)}
    assert evaluated == {4, parts.facts.eval_samples % 4} - {0}
    assert [batch.images.shape[-1] for _, _, batch in batches] == [8, 12, 16]
    assert all(batch.images.is_contiguous() for _, _, batch in batches)
    assert seen == [(6, 3, size, size) for size in (8, 12, 16)]


@pytest.mark.parametrize("name", ["cifar10_94_baseline", "cifar10_94_methods"])
def test_a_config_for_a_gpu_trains_a_step_on_a_cpu(cifar_folder, losses, name, monkeypatch):
    convolved: list[int] = []
    count = train.convolve_side_by_side
    monkeypatch.setattr(train, "convolve_side_by_side", lambda model: convolved.append(count(model)))
    config = replace(getattr(configs, name)(), device="cpu", compile=False, global_batch=8, budget_minutes=1e-9)
    precision: Any = "fp32" if emulated("bf16", "cpu") else config.precision  # emulated, a step takes two minutes
    small = replace(config, data=replace(config.data, eval_batch=8), precision=precision, warm_up_steps=1)
    run = trained(small, data_folder=cifar_folder, check_every=1)
    assert run.outcome is Outcome.BUDGET_SPENT
    assert len(losses) == 1 and math.isfinite(losses[0])
    assert len(convolved) == 1 and convolved[0] > 0


@pytest.mark.timeout(100)
def test_digits_methods_reach_their_target(tmp_path):
    config = replace(configs.digits_methods(), seed=11)
    trained(config, RunLog(tmp_path / "result_0.txt"))
    log = record.read(tmp_path / "result_0.txt")
    assert log.status == keys.SUCCESS
    assert log.final_quality is not None and log.final_quality >= config.evaluation.target
    assert log.value(keys.EVAL_SAMPLES) == 900


def recipe_run(config: configs.ImageRunConfig) -> configs.ImageRunConfig:
    """Return `config` with a small network, 32 px and 3 steps on the tests' store."""
    data = replace(config.data, train_size=32, eval_resize=20, eval_size=16, eval_batch=6, loader="pillow", workers=0)
    return replace(
        config,
        global_batch=8,
        micro_batch=4,
        precision="fp32",
        model=replace(config.model, layers=(1, 1), widths=(16, 32), classes=2),
        methods=tuple(replace(m, update_interval=1) if isinstance(m, methods.EMA) else m for m in config.methods),
        data=data,
        evaluation=replace(config.evaluation, target=0.999),
        max_epochs=1,
        warm_up_steps=0,
    )


def test_the_recipe_with_the_methods_of_all_resumes_to_its_losses(prepared, tmp_path, losses, monkeypatch):
    monkeypatch.setattr(datasets, "EPOCH_STEPS", 3)
    config, folder = recipe_run(configs.imagenet_hot()), prepared["jpeg"]
    assert not preflight(config, folder, 1)
    trained(config, data_folder=folder)
    trained(config, data_folder=folder, resume_from=stopped(config, 1, tmp_path, data_folder=folder))
    assert len(losses) == 6 and losses[3:] == losses[:3]


def test_a_budget_out_of_range_is_refused_before_the_run(prepared, monkeypatch):
    monkeypatch.setattr(datasets, "EPOCH_STEPS", 3)
    config = replace(recipe_run(configs.imagenet_mild()), schedule=replace(configs.imagenet_mild().schedule, scale=1.0))
    (problem,) = preflight(config, prepared["jpeg"], 1)
    assert "mild is meant for 9 to 66 epochs, not for 90" in problem and "--recipe none" in problem
    assert not preflight(replace(config, recipe="none"), prepared["jpeg"], 1)
    assert "mlid does not exist" in preflight(replace(config, recipe="mlid"), prepared["jpeg"], 1)[0]


def test_a_ramp_by_steps_is_warmed_up_at_every_size_and_needs_a_loader_that_follows():
    resizing = methods.ProgressiveResizing(start=0.5, delay=0.0, finetune=0.2, increment=1, interpolation="bilinear")
    config = replace(configs.synthetic_smoke(), methods=(resizing,), warm_up_steps=1, progress_unit="step")
    places = [(epoch, step) for epoch, step, _ in warm_up.train_batches(config, parts_of(config), ALONE)]
    sizes = [resizing.sizes(16, [config.progress(epoch, step / 8)])[0] for epoch, step in places]
    assert sizes == list(range(8, 17))
    loader = replace(config, methods=(replace(resizing, where="loader"),), data=configs.imagenet_mild().data)
    assert any("progress_unit step: a loader decodes" in problem for problem in preflight(loader, None, 1))
