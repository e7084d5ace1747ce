"""Training loop of masked language modelling: build, warm up, start the clock, train, evaluate."""

from contextlib import closing

import torch
from torch import Tensor

from judging.ground.errors import UsageError
from language_model import warm_up
from language_model.batches import TextBatches, open_batches
from language_model.build import build
from language_model.collator import MaskedBatch
from language_model.configs import BertRunConfig
from language_model.datasets import facts
from language_model.encoder import Bert
from language_model.model import ReferenceBert
from language_model.run_info import run_info
from timedrun.methods.training import sampling
from timedrun.methods.training.precision import Precision
from timedrun.methods.training.train_state import seed_everything
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.run.accumulation import backward
from timedrun.runner.run.timed_run import TimedRun


def train(config: BertRunConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` masked-token accuracy, or for `config.max_samples` samples. Raises UsageError
    if the settings contradict each other; DataError if the data is missing or damaged."""
    if problems := config.problems():  # runs started by another launcher have had no preflight
        raise UsageError(" ".join(problems))
    ranks, schedule = run.ranks, config.schedule
    parts = build(config, ranks, facts(config.data, run.data_folder), ranks.device)
    store = parts.facts.store
    model, optimizer, methods, precision = parts.model, parts.optimizer, parts.methods, parts.precision
    seed_everything(sampling.stream_seed(config.seed, "training", ranks.rank))  # dropout differs between ranks
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)

    if config.compile:
        if ranks.world_size > 1:
            # DDPOptimizer's split at gradient buckets does not support varying sizes. Bert's regions need none: the
            # gradients of each are reduced while those of the next are computed.
            torch._dynamo.config.optimize_ddp = False
        model.compile()  # in place, so that names in state dicts do not change
    parallel = ranks.wrap(model, find_unused_parameters=methods.skips_parameters)

    def weighted_loss(batch: MaskedBatch, weight: float) -> Tensor:
        loss: Tensor = parallel(batch) * weight
        return loss

    def step(batches: list[MaskedBatch], *, number: int) -> Tensor:
        """Take optimizer step `number` (from 0). Returns this rank's part of the mean loss times the world size."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule.factor(number)
        methods.before_step(model, number, min(1.0, number * config.global_batch / config.max_samples))
        # DDP averages over ranks; these weights make that the mean over all masked tokens of the global batch.
        pieces = [(batch, ranks.world_size / batch.global_masked) for batch in batches]
        loss = backward(pieces, weighted_loss, parallel, model=model, methods=methods, precision=precision, ranks=ranks)
        precision.unscale(optimizer)
        methods.gradients(model)
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        return loss

    # Before the clock: code is compiled and memory allocated on random batches; then all state is restored.
    run.warm_up(
        lambda batches: step(batches, number=schedule.warmup_steps),
        warm_up.train_batches(config, ranks, parts.batch),
        evaluate_step=lambda batch: count_correct(model, batch, precision),
        evaluate=warm_up.evaluation_batches(config, ranks),
    )
    run.start_clock(run_info(config, parts))
    # On the clock, on which the data is opened, too.
    with closing(open_batches(config, store, ranks)) as batches:
        for block in run.blocks(config.max_samples):
            model.train()
            for number, micro_batches in zip(run.steps(block), batches.train(run.position.step), strict=False):
                loss = step(micro_batches, number=number)
                methods.after_step(model)
                run.step_done(config.global_batch, loss)
            with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
                measurement.value = accuracy(model, batches, precision, ranks)


def count_correct(model: Bert | ReferenceBert, batch: MaskedBatch, precision: Precision) -> Tensor:
    """Return the number of masked tokens whose highest logit is the label's, a 0-dimensional int64 tensor."""
    with torch.inference_mode(), precision.autocast():
        return model.count_correct(batch)


def accuracy(model: Bert | ReferenceBert, batches: TextBatches, precision: Precision, ranks: ProcessGroup) -> float:
    """Return the fraction of the evaluation set's masked tokens predicted correctly, over all ranks. Raises
    RuntimeError if the ranks together did not see every sequence once."""
    counts = torch.zeros(3, dtype=torch.int64, device=ranks.device)
    model.eval()
    with torch.inference_mode():  # batches made in it, as the warm-up's: compiled code is for one kind of tensor
        for batch in batches.evaluation():
            counts[0] += count_correct(model, batch, precision)
            counts[1] += batch.global_masked
            counts[2] += batch.global_samples
    correct, masked, seen = ranks.all_reduce_sum(counts).tolist()
    if seen != len(batches.eval_store):
        raise RuntimeError(
            f"evaluation saw {seen} sequences, but the set has {len(batches.eval_store)}; no accuracy was recorded."
        )
    return float(correct / masked)
