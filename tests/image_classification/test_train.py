"""Image classification runs: warm-up, clock before data, exact counts, accumulation, methods, stored images."""

import math
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from image_classification import SPEC, batches, warm_up
from image_classification.build import Parts, build
from image_classification.configs import (
    ImageRunConfig,
    cifar10_94_baseline,
    cifar10_94_methods,
    cifar10_methods,
    digits_methods,
    imagenet_methods,
    synthetic_smoke,
)
from image_classification.datasets import declared
from image_classification.stores.manifest import Format, StoreConfig
from image_classification.train import accuracy, train
from judging.ground.errors import DataError
from mlevents import keys, record
from mlevents.runlog import RunLog
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.methods import (
    EMA,
    ChannelsLast,
    ColOut,
    NoEffect,
    ProgressiveResizing,
    RandAugment,
    SelectiveBackprop,
    stack,
)
from timedrun.run import checkpoint_file, timed_run
from timedrun.run.blocks import Outcome
from timedrun.run.checkpoint_manager import checkpoint_path
from timedrun.run.progress import Progress
from timedrun.run.timed_run import TimedRun
from timedrun.training.number_formats import emulated
from timedrun.training.precision import Precision
from timedrun.training.sampling import Indices

ALONE = ProcessGroup(0, 1, 0, torch.device("cpu"))


def run_of(config: ImageRunConfig, log: RunLog) -> TimedRun:
    return TimedRun(config, SPEC, ALONE, log, platform="1xCPU", progress=Progress("test", shown=False))


def parts_of(config: ImageRunConfig) -> Parts:
    return build(config, ALONE, declared(config.data), torch.device("meta"))


class Steps:
    """Record image size and loss of every step of a test's runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes, self.losses = list[int](), list[float]()
        self.at_step: Callable[[TimedRun], None] = lambda run: None
        step_done: Callable[..., None] = TimedRun.step_done
        train_batches = batches.ImageBatches.train

        def recorded(run: TimedRun, samples: int, loss: torch.Tensor) -> None:
            self.losses.append(float(loss))
            self.at_step(run)
            step_done(run, samples, loss)

        def seen(opened: batches.ImageBatches, epoch: int, first_step: int = 0) -> Any:
            for batch in train_batches(opened, epoch, first_step):
                self.sizes.append(batch.images.shape[-1])
                yield batch

        monkeypatch.setattr(TimedRun, "step_done", recorded)
        monkeypatch.setattr(batches.ImageBatches, "train", seen)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def losses_of(config: ImageRunConfig, steps: Steps) -> list[float]:
    """Return the loss of every training step of a run."""
    steps.losses = []
    with run_of(config, RunLog(None)) as run:
        train(config, run)
    return steps.losses


def test_the_losses_of_a_run_are_the_same_with_and_without_warm_up(steps: Steps) -> None:
    config = replace(synthetic_smoke(), evaluation=replace(synthetic_smoke().evaluation, target=0.99))
    without = losses_of(replace(config, warm_up_steps=0), steps)
    assert len(without) == 16
    assert without == losses_of(replace(config, warm_up_steps=3), steps)


def test_run_start_is_on_disk_before_the_data_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result_0.txt"

    def refuse(*arguments: Any, **options: Any) -> None:
        assert record.read(path).started is not None
        raise OSError("no data today")

    monkeypatch.setattr(batches, "open_source", refuse)
    config = synthetic_smoke()
    with pytest.raises(OSError, match="no data today"), run_of(config, RunLog(path)) as run:
        train(config, run)
    assert record.read(path).status == keys.ABORTED


def test_gradient_accumulation_gives_the_gradients_of_the_whole_batch(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = synthetic_smoke()
    # Batch norm sees the micro-batch, so that only a network without its noise can be compared to the last digit.
    model = replace(base.model, initialisation="kaiming")
    config = replace(base, model=model, methods=(), evaluation=replace(base.evaluation, target=0.99))
    monkeypatch.setattr(torch.nn, "BatchNorm2d", torch.nn.InstanceNorm2d)
    whole = losses_of(config, steps)
    parts = losses_of(replace(config, micro_batch=24), steps)
    assert parts == pytest.approx(whole, rel=1e-4)


def test_an_evaluation_that_misses_images_is_an_error() -> None:
    config = synthetic_smoke()
    opened = batches.ImageBatches(config.data, None, ALONE, global_batch=64, seed=1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 10))
    precision = Precision("fp32", ALONE.device)
    assert 0 <= accuracy(model, opened, precision, ALONE, 128) <= 1
    with pytest.raises(RuntimeError, match="evaluation saw 128 images, but the set has 129"):
        accuracy(model, opened, precision, ALONE, 129)


def test_accuracy_counts_every_image_once() -> None:
    config = replace(synthetic_smoke().data, synthetic_eval=101, eval_batch=7)
    opened = batches.ImageBatches(config, None, ALONE, global_batch=64, seed=1)
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
    epochs = [epoch for epoch, _, _ in warm_up.train_batches(config, parts_of(config), ALONE)]
    assert {resizing.sizes(16, [(e - 1) / 10 for e in range(1, 11)])[e - 1] for e in epochs} == {8, 12, 16}
    assert len(epochs) == 3


def test_warm_up_sees_sizes_that_differ_in_rows_alone() -> None:
    methods = (ProgressiveResizing(start=0.5, delay=0.0, increment=1), ColOut(p_row=0.1, p_col=0.5))
    config = replace(synthetic_smoke(), methods=methods, warm_up_steps=1)
    config = replace(config, schedule=replace(config.schedule, epochs=10))
    sizes = set()
    for epoch, step, batch in warm_up.train_batches(config, parts_of(config), ALONE):
        speed = stack(*methods)
        speed.enter(step, config.progress(epoch))
        sizes.add(tuple(speed.batch(batch.images, batch.labels, 10)[0].shape[2:]))
    assert sizes == {(int(0.9 * side), side // 2) for side in (8, 9, 10, 11, 12, 13, 14, 15, 16)}


def test_warm_up_sees_the_batches_that_a_selection_leaves() -> None:
    base = synthetic_smoke()
    config = replace(base, methods=(SelectiveBackprop(),), schedule=replace(base.schedule, epochs=10))
    epochs = {epoch for epoch, _, _ in warm_up.train_batches(config, parts_of(config), ALONE)}
    assert epochs == {1, 6}  # from half of the run on


def test_warm_up_sees_the_short_last_batch_in_the_same_steps_on_all_ranks() -> None:
    base = synthetic_smoke()
    resizing = ProgressiveResizing(start=0.5, delay=0.0, finetune=0.2, increment=8)
    data = replace(base.data, synthetic_train=23, drop_last=False)
    config = replace(base, data=data, global_batch=6, methods=(resizing, SelectiveBackprop(start=0.3)), warm_up_steps=1)
    config = replace(config, schedule=replace(config.schedule, epochs=10))
    seen = []
    for rank in (0, 1):
        ranks = ProcessGroup(rank, 2, rank, torch.device("cpu"))
        parts = build(config, ranks, declared(config.data), torch.device("meta"))
        seen.append(list(warm_up.train_batches(config, parts, ranks)))
    places = [[(epoch, step, batch.global_samples) for epoch, step, batch in one] for one in seen]
    assert places[0] == places[1] and {samples for *_, samples in places[0]} == {6, 5}
    counts = [{len(batch.images) for _, _, batch in one if batch.global_samples == 5} for one in seen]
    assert counts == [{2}, {3}]


def test_a_compiled_run_compiles_every_shape_of_its_batches_before_the_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda model, **options: compile_module(model, backend="eager", **options)
    )
    base = synthetic_smoke()
    config = replace(
        base,
        compile=True,
        data=replace(base.data, synthetic_train=150, synthetic_eval=70, drop_last=False),
        evaluation=replace(base.evaluation, target=0.99),
        methods=(ProgressiveResizing(start=0.5, delay=0.0, finetune=0.4, increment=8),),
    )
    log = RunLog(tmp_path / "result_0.txt")
    with run_of(config, log) as run:
        train(config, run)
    assert run.outcome is Outcome.NOT_REACHED and not record.read(tmp_path / "result_0.txt").all(keys.RECOMPILED)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


def test_warm_up_augments_noise_of_every_loaded_size() -> None:
    methods = (ProgressiveResizing(start=0.5, delay=0.0, increment=4, where="loader"), RandAugment())
    config = replace(synthetic_smoke(), methods=methods, warm_up_steps=1, global_batch=4)
    config = replace(config, schedule=replace(config.schedule, epochs=10))
    parts, seen = parts_of(config), list[tuple[int, ...]]()

    def augment(images: torch.Tensor, samples: Indices, epoch: int) -> torch.Tensor:
        assert images.dtype == torch.uint8 and len(samples) == 4
        seen.append(tuple(images.shape))
        return images

    parts.methods.augment = augment  # type: ignore[method-assign]
    list(warm_up.train_batches(config, parts, ALONE))
    assert seen == [(4, 3, size, size) for size in (8, 12, 16)]


RESIZING = ProgressiveResizing(start=0.5, delay=0.2, finetune=0.2, increment=4, where="loader")


def stored(**changes: Any) -> ImageRunConfig:
    """Return the config of a small run on a jpeg store of 29 images, decoded at the size of each epoch."""
    base, images = synthetic_smoke(), imagenet_methods().data
    return replace(
        base,
        dataset="small",
        global_batch=6,
        model=replace(base.model, classes=2),
        data=replace(
            images,
            train_size=16,
            eval_resize=20,
            eval_size=16,
            eval_batch=4,
            loader="pillow",
            store=StoreConfig(format="jpeg"),
            workers=0,
            prefetch=2,
        ),
        schedule=replace(base.schedule, epochs=5),
        evaluation=replace(base.evaluation, target=0.999, every=2, first=2),
        methods=(ChannelsLast(), RESIZING),
        **changes,
    )


def stored_run(config: ImageRunConfig, folder: Path, log: RunLog, **options: Any) -> TimedRun:
    progress = Progress("test", shown=False)
    return TimedRun(config, SPEC, ALONE, log, platform="1xCPU", progress=progress, data_folder=folder, **options)


def no_thread_is_left() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name in ("prefetch", "read-ahead")]


def test_images_are_decoded_at_the_size_of_their_epoch_and_the_log_names_the_loader(
    prepared: dict[Format, Path], tmp_path: Path, steps: Steps
) -> None:
    config = stored()
    with stored_run(config, prepared["jpeg"], RunLog(tmp_path / "result_0.txt")) as run:
        train(config, run)
    expected = RESIZING.sizes(16, [config.progress(epoch) for epoch in range(1, 6)])
    assert steps.sizes == [size for size in expected for _ in range(4)]
    assert len(set(steps.sizes)) == 3
    log = record.read(tmp_path / "result_0.txt")
    assert [log.value(key) for key in (keys.DATA_LOADER, keys.DATA_STORE, keys.DATA_PREFETCH)] == [
        "pillow",
        "jpeg, original size",
        2,
    ]
    assert no_thread_is_left()


def test_a_resumed_run_on_stored_images_has_the_losses_of_an_uninterrupted_one(
    prepared: dict[Format, Path], tmp_path: Path, steps: Steps
) -> None:
    config = stored(seed=4)
    with stored_run(config, prepared["jpeg"], RunLog(None)) as run:
        train(config, run)
    whole, steps.losses = steps.losses, []
    stop = ShutdownRequest()

    def at_step(run: TimedRun) -> None:
        if len(steps.losses) == 7:
            stop.signal = signal.SIGTERM

    steps.at_step = at_step
    with stored_run(config, prepared["jpeg"], RunLog(None), stop=stop, checkpoints=tmp_path) as run:
        train(config, run)
    assert run.outcome is Outcome.STOPPED
    assert no_thread_is_left()
    state = checkpoint_file.load(checkpoint_path(tmp_path / "rank_0", 7))
    with stored_run(config, prepared["jpeg"], RunLog(None), resume_from=state) as run:
        train(config, run)
    assert len(whole) == 20
    assert steps.losses == whole


def test_a_store_truncated_during_training_aborts_the_run_and_names_the_file(
    prepared: dict[Format, Path], tmp_path: Path, steps: Steps
) -> None:
    folder = shutil.copytree(prepared["jpeg"], tmp_path / "store")
    (shard,) = (folder / "train").glob("*.jpegs")

    def at_step(run: TimedRun) -> None:
        if len(steps.losses) == 3:
            os.truncate(shard, 100)

    steps.at_step = at_step
    log = RunLog(tmp_path / "result_0.txt")
    with pytest.raises(DataError, match=shard.name), stored_run(stored(), folder, log) as run:
        train(stored(), run)
    assert record.read(tmp_path / "result_0.txt").status == keys.ABORTED
    assert shard.name in str(record.read(tmp_path / "result_0.txt").stopped)
    assert no_thread_is_left()


def test_data_are_read_ahead_on_the_clock_if_requested(
    prepared: dict[Format, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[Path], int]] = []
    read_ahead = timed_run.ReadAhead
    monkeypatch.setattr(
        timed_run, "ReadAhead", lambda files, total: (asked.append((list(files), total)), read_ahead(files, total))[1]
    )
    config = stored()
    for ahead in (False, True):
        chosen = replace(config, max_epochs=1, data=replace(config.data, read_ahead=ahead), methods=())
        with stored_run(chosen, prepared["jpeg"], RunLog(None)) as run:
            train(chosen, run)
    ((files, total),) = asked
    assert total == sum(path.stat().st_size for path in files)
    assert prepared["jpeg"] / "train" / "00000.jpegs" in files


def test_warm_up_sees_every_size_that_is_loaded() -> None:
    config = replace(stored(), warm_up_steps=1)
    parts = parts_of(config)
    batches = list(warm_up.train_batches(config, parts, ALONE))
    evaluated = {len(batch.images) for batch in warm_up.evaluation_batches(config, parts, ALONE)}
    assert evaluated == {4, parts.facts.eval_samples % 4} - {0}
    assert [batch.images.shape[-1] for _, _, batch in batches] == [8, 12, 16]
    assert all(batch.images.is_contiguous() for _, _, batch in batches)


@pytest.mark.parametrize("config", [cifar10_94_baseline(), cifar10_94_methods()], ids=lambda config: config.name)
def test_a_config_for_a_gpu_trains_a_step_on_a_cpu(cifar_folder: Path, steps: Steps, config: ImageRunConfig) -> None:
    precision: Any = "fp32" if emulated("bf16", "cpu") else config.precision  # emulated, a step takes two minutes
    small = replace(
        config, device="cpu", precision=precision, compile=False, global_batch=8, budget_minutes=1e-9, warm_up_steps=1
    )
    with stored_run(small, cifar_folder, RunLog(None), check_every=1) as run:
        train(small, run)
    assert run.outcome is Outcome.BUDGET_SPENT
    assert steps.sizes == [32] and math.isfinite(steps.losses[0])


def test_the_methods_to_94_percent_are_those_to_90_but_for_small_images() -> None:
    names = [method.name for method in cifar10_methods().methods]
    assert [method.name for method in cifar10_94_methods().methods] == [
        name for name in names if name != "progressive_resizing"
    ]


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
