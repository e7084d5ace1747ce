"""Training loop of image segmentation: build, warm up, start the clock, train, evaluate until the target."""

from collections.abc import Iterator
from contextlib import closing

import torch
from torch import Tensor

from image_segmentation.batches import Batch, Facts, SliceBatches
from image_segmentation.configs import SegmentationConfig
from image_segmentation.datasets import source_of
from image_segmentation.model import dice_cross_entropy, mean_dice, overlaps
from image_segmentation.run_info import build, run_info
from timedrun.methods import stack
from timedrun.methods.training import sampling
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.precision import Precision
from timedrun.methods.training.train_state import seed_everything
from timedrun.runner.run.accumulation import backward
from timedrun.runner.run.timed_run import TimedRun


def train(config: SegmentationConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` mean Dice or for `config.total_epochs` epochs. Raises DataError if the data
    is missing or damaged."""
    ranks, source = run.ranks, source_of(config)
    known = source(run.data_folder).facts
    model, optimizer, methods = build(config, known, ranks.rank, ranks.device)
    plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
    epoch_steps, eval_batch = config.epoch_steps(known.train_samples), max(1, config.eval_batch // ranks.world_size)
    precision = Precision(config.precision, ranks.device)
    seed_everything(sampling.stream_seed(config.seed, "training", ranks.rank))
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)
    if config.compile:
        torch._dynamo.config.recompile_limit = 64  # each size of progressive resizing is compiled
        model.compile(dynamic=False)
    parallel = ranks.wrap(model, find_unused_parameters=methods.skips_parameters)

    def weighted_loss(images: Tensor, masks: Tensor, weight: float) -> Tensor:
        return dice_cross_entropy(parallel(images), masks) * weight

    def step(batch: Batch, number: int) -> Tensor:
        """Take optimizer step `number` (from 0) over all ranks. Returns this rank's mean loss."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * config.schedule.factor(number / epoch_steps)
        methods.before_step(model, number, config.progress(number, epoch_steps))
        images, masks = methods.batch(batch.images, batch.masks, known.classes)
        parts = (torch.split(tensor, plan.micro) for tensor in (images, masks))
        # The Dice loss is that of a micro-batch, as in MosaicML's runs.
        pieces = [(inputs, wanted, len(inputs) / plan.local) for inputs, wanted in zip(*parts, strict=True)]
        loss = backward(pieces, weighted_loss, parallel, model=model, methods=methods, precision=precision, ranks=ranks)
        precision.unscale(optimizer)
        methods.gradients(model)
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        return loss

    def count(batch: Batch) -> Tensor:
        with precision.autocast():
            logits = model(batch.images)
        return overlaps(logits.argmax(1), batch.masks, known.classes)

    def evaluate(batches: SliceBatches) -> float:
        """Return the mean Dice of all evaluation cases, over all ranks."""
        counts = torch.zeros(known.eval_cases, known.classes - 1, 2, dtype=torch.int64, device=ranks.device)
        model.eval()
        ranks.broadcast_buffers(model)
        with torch.inference_mode():
            for batch in batches.evaluation(eval_batch):
                counts.index_add_(0, batch.cases, count(batch))
        return mean_dice(ranks.all_reduce_sum(counts))

    slices = len(sampling.evaluation_part(known.eval_samples, ranks.rank, ranks.world_size))
    evaluated = {min(eval_batch, slices), slices % eval_batch} - {0}
    # Before the clock: every shape of a batch is compiled and allocated once; then all state is restored.
    run.warm_up(
        lambda numbered: step(numbered[1], numbered[0]),
        warm_up_batches(config, known, plan.local, ranks.device),
        evaluate_step=count,
        evaluate=(blank(known, size, ranks.device) for size in evaluated if config.warm_up_steps),
    )
    run.start_clock(run_info(config, known, ranks.world_size, optimizer))
    # On the clock, on which the data is opened, too.
    with closing(SliceBatches(config, source(run.data_folder).read(), ranks)) as batches:
        for block in run.blocks(config.total_epochs):
            model.train()
            for _ in run.epochs(block):
                left = range(run.position.step_in_epoch, epoch_steps)
                for _, batch in zip(left, batches.train(run.position.step), strict=False):
                    loss = step(batch, run.position.step)
                    methods.after_step(model)
                    run.step_done(config.global_batch, loss)
            with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
                measurement.value = evaluate(batches)


def warm_up_batches(
    config: SegmentationConfig, known: Facts, count: int, device: torch.device
) -> Iterator[tuple[int, Batch]]:
    """Yield `warm_up_steps` blank batches for every size that the methods make, each with a step that has it."""
    epoch_steps, first = config.epoch_steps(known.train_samples), dict[torch.Size, int]()
    methods, whole = stack(*config.methods), blank(known, count, torch.device("meta"))
    for step in range(config.total_epochs * epoch_steps):
        methods.enter(step, config.progress(step, epoch_steps))
        first.setdefault(methods.batch(whole.images, whole.masks, known.classes)[0].shape, step)
    for step in first.values():
        for number in range(step, step + config.warm_up_steps):
            yield number, blank(known, count, device)


def blank(known: Facts, count: int, device: torch.device) -> Batch:
    """Return a batch of `count` slices of zeros."""
    masks = torch.zeros(count, *known.size, dtype=torch.int64, device=device)
    return Batch(torch.zeros(count, known.channels, *known.size, device=device), masks, masks[:, 0, 0])
