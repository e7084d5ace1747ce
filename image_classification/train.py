"""The run of image classification, top to bottom: build, warm up, start the clock, train, evaluate until the target."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from image_classification.batches import Batch, ImageData
from image_classification.configs import ImageRunConfig
from image_classification.datasets import DataFacts, declared, facts, logged
from image_classification.loaders.registry import make_ready
from image_classification.model import build_model
from image_classification.stores.data_files import data_files
from timedrun.distributed.process_group import ProcessGroup
from timedrun.methods import stack
from timedrun.preflight.plan import Plan, facts_or_declared
from timedrun.run.timed_run import RunInfo, TimedRun
from timedrun.training.batch_plan import BatchPlan
from timedrun.training.loss import binary_cross_entropy, cross_entropy
from timedrun.training.optim import build_optimizer
from timedrun.training.precision import Precision

LOSSES = {"cross_entropy": cross_entropy, "binary_cross_entropy": binary_cross_entropy}


def train(config: ImageRunConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` top-1 accuracy or to the end of the schedule."""
    ranks, device = run.ranks, run.ranks.device
    known = facts(config.data, run.data_folder)
    methods = stack(*config.methods)
    model = methods.model(build_model(config.model, config.seed)).to(device)
    optimizer = build_optimizer(config.optimizer, model)
    precision = Precision(config.precision, device)
    schedule = config.schedule
    batches_per_epoch = max(1, known.train_samples // config.global_batch)
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)

    if config.compile:
        model.compile()  # in place: names in state dicts stay what they are
    parallel = ranks.wrap(model)
    run.straggler.attach(parallel)
    plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
    loss_function = LOSSES[config.loss]

    def step(batch: Batch, *, epoch: int, step_in_epoch: int) -> Tensor:
        """One optimizer step over all ranks; returns this rank's mean loss."""
        elapsed = epoch - 1 + step_in_epoch / batches_per_epoch  # epochs
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule.factor(elapsed)
        images, targets = methods.batch(batch.images, batch.labels, progress_at(config, epoch), known.classes)
        whole = len(images) <= plan.micro
        pieces = (
            [(images, targets)]
            if whole
            else list(zip(torch.split(images, plan.micro), torch.split(targets, plan.micro), strict=True))
        )
        total: Tensor | None = None
        for number, (inputs, labels) in enumerate(pieces, 1):
            # DDP averages over ranks; this weight makes that the mean over the whole batch even where shares differ.
            weight = len(inputs) * ranks.world_size / batch.global_samples
            with ranks.accumulate(parallel, last=number == len(pieces)):
                with precision.autocast():
                    loss = loss_function(parallel(inputs), labels)
                precision.backward(loss if weight == 1 else loss * weight)
            part = loss.detach() if whole else loss.detach() * (len(inputs) / len(images))
            total = part if total is None else total + part
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        assert total is not None  # a rank has at least one image of every batch: preflight sees to it
        return total

    run.warm_up(
        lambda warm: step(warm[1], epoch=warm[0], step_in_epoch=1),
        synthetic_batches(config, ranks, plan.local, known.channels),
        evaluate_step=lambda batch: count_correct(model, batch, precision),
        evaluate=synthetic_evaluation(config, ranks, known.channels),
    )
    files = data_files(config.data, run.data_folder)
    if files is not None:
        make_ready(config.data.loader)
    run.start_clock(
        run_info(config, optimizer, known, plan),
        files=files or (),
        read_ahead_bytes=files.bytes if files is not None and config.data.read_ahead else None,
    )
    with ImageData(
        config.data,
        run.data_folder,
        ranks,
        global_batch=config.global_batch,
        seed=config.seed,
        size_at=lambda epoch: methods.input_size(config.data.train_size, progress_at(config, epoch)),
        last_epoch=config.total_epochs,
    ) as data:
        for block in run.blocks(config.total_epochs):
            model.train()
            for epoch in run.epochs(block):
                for batch in data.train(epoch, first_step=run.position.step_in_epoch):
                    loss = step(batch, epoch=epoch, step_in_epoch=run.position.step_in_epoch)
                    methods.after_step(model, run.position.step + 1)
                    run.step_done(batch.global_samples, loss)
            with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
                measurement.value = accuracy(model, data, precision, ranks, known.eval_samples)


def progress_at(config: ImageRunConfig, epoch: int) -> float:
    """The elapsed fraction of the run that methods see: whole epochs, as in the 2022 runs, so that input sizes change
    between epochs only."""
    return min(1.0, (epoch - 1) / config.schedule.epochs_scaled)


def count_correct(model: nn.Module, batch: Batch, precision: Precision) -> Tensor:
    """Number of samples whose highest logit is their label."""
    with precision.autocast():
        logits = model(batch.images)
    correct: Tensor = (logits.argmax(1) == batch.labels).sum()
    return correct


def accuracy(model: nn.Module, data: ImageData, precision: Precision, ranks: ProcessGroup, expected: int) -> float:
    """Top-1 accuracy over the whole evaluation set, every image counted once over all ranks.

    Raises:
        RuntimeError: the images counted are not the `expected` number.
    """
    counts = torch.zeros(2, dtype=torch.int64, device=ranks.device)
    model.eval()
    ranks.broadcast_buffers(model)
    with torch.inference_mode():
        for batch in data.evaluation():
            counts[0] += count_correct(model, batch, precision)
            counts[1] += len(batch.labels)
    correct, seen = ranks.all_reduce_sum(counts).tolist()
    if seen != expected:
        raise RuntimeError(f"evaluation saw {seen} images, but the set has {expected}; its accuracy would be wrong.")
    return float(correct / seen)


def noise(ranks: ProcessGroup, count: int, channels: int, size: int) -> tuple[Tensor, Tensor]:
    """Return random images and their labels, all 0."""
    images = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))
    return images.to(ranks.device), torch.zeros(count, dtype=torch.int64, device=ranks.device)


def synthetic_evaluation(config: ImageRunConfig, ranks: ProcessGroup, channels: int) -> Iterator[Batch]:
    """Yield one evaluation batch of noise if the run warms up."""
    if config.warm_up_steps:
        count = max(1, config.data.eval_batch // ranks.world_size)
        yield Batch(*noise(ranks, count, channels, config.data.eval_size), count)


def synthetic_batches(
    config: ImageRunConfig, ranks: ProcessGroup, share: int, channels: int
) -> Iterator[tuple[int, Batch]]:
    """Yield `warm_up_steps` batches of noise for every input size of the run, each with an epoch that has this size."""
    whole, labels = noise(ranks, share, channels, config.data.train_size)
    seen: set[int] = set()
    for epoch in range(1, config.total_epochs + 1):
        methods, progress = stack(*config.methods), progress_at(config, epoch)
        loaded = methods.input_size(config.data.train_size, progress)
        images = whole if loaded == config.data.train_size else whole[:, :, :loaded, :loaded].contiguous()
        inputs, _ = methods.batch(images[:1], labels[:1], progress, config.model.classes)
        if inputs.shape[-1] not in seen:
            seen.add(inputs.shape[-1])
            for _ in range(config.warm_up_steps):
                yield epoch, Batch(images, labels, share * ranks.world_size)


def run_info(config: ImageRunConfig, optimizer: torch.optim.Optimizer, known: DataFacts, plan: BatchPlan) -> RunInfo:
    """What the log says of this run before its clock starts."""
    return {
        "train_samples": known.train_samples,
        "eval_samples": known.eval_samples,
        "hyperparameters": hyperparameters(config, optimizer, plan),
        "methods": [method.name for method in config.methods],
    }


def rehearse(config: ImageRunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """What `train` would announce and how long it would go on at most, from a model that takes no memory."""
    known, missing = facts_or_declared(lambda: facts(config.data, data_folder), declared(config.data))
    with torch.device("meta"):
        model = stack(*config.methods).model(build_model(config.model, config.seed))
    plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
    optimizer = build_optimizer(config.optimizer, model)
    return Plan(run_info(config, optimizer, known, plan), config.total_epochs, missing)


def hyperparameters(
    config: ImageRunConfig, optimizer: torch.optim.Optimizer, plan: BatchPlan
) -> dict[str, str | int | float | bool]:
    """What the log says of this run, from the objects that were built, by MLPerf's names where it has them."""
    group = optimizer.param_groups[0]
    return {
        "gradient_accumulation_steps": plan.accumulation,
        "opt_name": config.optimizer.kind,
        "opt_base_learning_rate": group["initial_lr"],
        "opt_learning_rate_warmup_epochs": config.schedule.warmup_epochs_scaled,
        "opt_learning_rate_decay_epochs": config.schedule.epochs_scaled,
        "opt_weight_decay": group["weight_decay"],
        "sgd_opt_momentum": config.optimizer.momentum,
        "model_parameters": sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
        "precision": config.precision,
        **logged(config.data),
    }


if __name__ == "__main__":
    from timedrun.cli import main

    sys.exit(main(["run", "image_classification", *sys.argv[1:]]))
