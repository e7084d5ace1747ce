"""Training loop of image classification: build, warm up, start the clock, train, evaluate until the target."""

import sys

import torch
from torch import Tensor, nn

from image_classification import warm_up
from image_classification.batches import Batch, ImageBatches
from image_classification.build import build
from image_classification.configs import ImageRunConfig
from image_classification.convolution import convolve_side_by_side
from image_classification.datasets import facts
from image_classification.loaders.registry import LOADERS
from image_classification.run_info import run_info
from timedrun.methods.training import sampling
from timedrun.methods.training.loss import LOSSES
from timedrun.methods.training.precision import Precision
from timedrun.methods.training.train_state import seed_everything
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.run.accumulation import backward
from timedrun.runner.run.timed_run import TimedRun


def train(config: ImageRunConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` top-1 accuracy or for `config.total_epochs` epochs. Raises DataError if the
    data is missing or damaged."""
    ranks, loss_function = run.ranks, LOSSES[config.loss]
    parts = build(config, ranks, facts(config.data, run.data_folder), ranks.device)
    model, optimizer, methods, micro = parts.model, parts.optimizer, parts.methods, parts.batch.micro
    precision = Precision(config.precision, ranks.device)
    seed_everything(sampling.stream_seed(config.seed, "training", ranks.rank))  # dropout differs between ranks
    train_samples = parts.facts.train_samples
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)

    if config.compile:
        # Inductor lays convolutions out for tensor cores for static shapes only: each input size is compiled, in the
        # warm-up; progressive resizing alone may have 13, in training and where samples are selected.
        torch._dynamo.config.recompile_limit = 64
        model.compile(dynamic=False)  # in place, so that names in state dicts do not change
    elif ranks.device.type == "cpu":
        convolve_side_by_side(model)
    parallel = ranks.wrap(model, find_unused_parameters=methods.skips_parameters)

    def losses(images: Tensor, labels: Tensor) -> Tensor:
        """Return the training loss of each image, without gradients."""
        pieces = zip(torch.split(images, micro), torch.split(labels, micro), strict=True)
        with torch.no_grad(), precision.autocast():
            return torch.cat([loss_function(model(inputs), labels, reduction="none") for inputs, labels in pieces])

    def weighted_loss(images: Tensor, targets: Tensor, weight: float) -> Tensor:
        return loss_function(methods.outputs(parallel(images)), targets) * weight

    def step(batch: Batch, *, epoch: int, step_in_epoch: int) -> Tensor:
        """Take one optimizer step over all ranks. Returns this rank's part of the mean loss, times ranks."""
        done = config.epoch_part(step_in_epoch, train_samples)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * config.schedule.factor(epoch - 1 + done)
        number = (epoch - 1) * config.epoch_steps(train_samples) + step_in_epoch
        methods.before_step(model, number, config.progress(epoch, done), batch.samples)
        images, labels = methods.select(batch.images, batch.labels, losses)
        trained = len(batch.images) / len(images)
        images, targets = methods.batch(images, labels, parts.facts.classes)
        pieces = [
            # DDP's mean over ranks times this weight is the mean over the global batch, also if local ones differ.
            (inputs, wanted, len(inputs) * ranks.world_size / batch.global_samples * trained)
            for inputs, wanted in zip(torch.split(images, micro), torch.split(targets, micro), strict=True)
        ]
        loss = backward(pieces, weighted_loss, parallel, model=model, methods=methods, precision=precision, ranks=ranks)
        precision.unscale(optimizer)
        methods.gradients(model)
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        return loss

    # Before the clock: every shape of a batch is compiled and allocated once; then all state is restored.
    run.warm_up(
        lambda synthetic: step(synthetic[2], epoch=synthetic[0], step_in_epoch=synthetic[1]),
        warm_up.train_batches(config, parts, ranks),
        evaluate_step=lambda batch: count_correct(model, batch, precision),
        evaluate=warm_up.evaluation_batches(config, parts, ranks),
    )
    if config.data.source == "image_folder":
        LOADERS[config.data.loader].compile_ahead()
    run.start_clock(run_info(config, parts))
    # On the clock, on which the data is opened, too.
    with ImageBatches(config, run.data_folder, ranks, methods) as batches:
        for block in run.blocks(config.total_epochs):
            model.train()
            for epoch in run.epochs(block):
                for batch in batches.train(epoch, first_step=run.position.step_in_epoch):
                    loss = step(batch, epoch=epoch, step_in_epoch=run.position.step_in_epoch)
                    methods.after_step(model)
                    run.step_done(batch.global_samples, loss)
            with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
                measurement.value = accuracy(model, batches, precision, ranks, parts.facts.eval_samples)


def count_correct(model: nn.Module, batch: Batch, precision: Precision) -> Tensor:
    """Return the number of samples whose highest logit is their label."""
    with precision.autocast():
        logits = model(batch.images)
    correct: Tensor = (logits.argmax(1) == batch.labels).sum()
    return correct


def accuracy(
    model: nn.Module, batches: ImageBatches, precision: Precision, ranks: ProcessGroup, expected: int
) -> float:
    """Return the top-1 accuracy on the whole evaluation set, over all ranks. Raises RuntimeError if the ranks together
    did not see `expected` images."""
    counts = torch.zeros(2, dtype=torch.int64, device=ranks.device)
    model.eval()
    ranks.broadcast_buffers(model)
    with torch.inference_mode():
        for batch in batches.evaluation():
            counts[0] += count_correct(model, batch, precision)
            counts[1] += len(batch.labels)
    correct, seen = ranks.all_reduce_sum(counts).tolist()
    if seen != expected:
        raise RuntimeError(f"evaluation saw {seen} images, but the set has {expected}; no accuracy was recorded.")
    return float(correct / seen)


if __name__ == "__main__":
    from timedrun.cli import main

    sys.exit(main(["run", "image_classification", *sys.argv[1:]]))
