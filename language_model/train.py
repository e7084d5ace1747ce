"""Training loop of masked language modelling: build, warm up, start the clock, train, evaluate."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from language_model.batches import TextBatches, open_batches, split
from language_model.build import build
from language_model.collator import MaskedBatch, collate
from language_model.configs import BertRunConfig
from language_model.datasets import facts
from language_model.encoder import Bert
from language_model.masking import prediction_counts
from language_model.model import ReferenceBert
from language_model.run_info import run_info
from language_model.text.store import MaskedSequences, read_manifest
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import UsageError
from timedrun.run.timed_run import TimedRun
from timedrun.run.train_state import seed_everything
from timedrun.training import sampling
from timedrun.training.batch_plan import BatchPlan
from timedrun.training.precision import Precision


def train(config: BertRunConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` masked-token accuracy, or for `config.max_samples` samples.

    Raises:
        UsageError: the settings contradict each other.
        DataError: the data is missing or damaged.
    """
    if problems := config.problems():  # runs started by another launcher have had no preflight
        raise UsageError(" ".join(problems))
    ranks, schedule = run.ranks, config.schedule
    parts = build(config, ranks, facts(config.data, run.data_folder), ranks.device)
    store = parts.facts.store
    model, optimizer, methods, precision = parts.model, parts.optimizer, parts.methods, parts.precision
    seed_everything(sampling.stream_seed(config.seed, "training", ranks.rank))  # dropout differs between ranks
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)

    if config.compile:
        if ranks.world_size > 1:  # DDPOptimizer's split at gradient buckets does not support varying sizes
            torch._dynamo.config.optimize_ddp = False
        model.compile()  # in place, so that names in state dicts do not change
    parallel = ranks.wrap(model)
    run.straggler.attach(parallel)

    def step(batches: list[MaskedBatch], *, number: int) -> Tensor:
        """Take optimizer step `number` (from 0). Returns this rank's part of the mean loss times the world size."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule.factor(number)
        total: Tensor | None = None
        for place, batch in enumerate(batches, 1):
            # DDP averages over ranks; this weight makes that the mean over all masked tokens of the global batch.
            weight = ranks.world_size / batch.global_masked
            with ranks.accumulate(parallel, last=place == len(batches)):
                with precision.autocast():
                    loss = parallel(batch) * weight
                precision.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        assert total is not None  # preflight ensures at least one sequence per rank
        return total

    run.warm_up(
        lambda batches: step(batches, number=schedule.warmup_steps),
        synthetic_batches(config, ranks, parts.batch),
        evaluate_step=lambda batch: count_correct(model, batch, precision),
        evaluate=synthetic_evaluation(config, ranks),
    )
    run.start_clock(run_info(config, parts), files=[store / name for name in read_manifest(store).files])
    batches = open_batches(config, store, ranks)
    for block in run.blocks(config.max_samples):
        model.train()
        for number, micro_batches in zip(run.steps(block), batches.train(run.position.step), strict=False):
            loss = step(micro_batches, number=number)
            methods.after_step(model, number + 1)
            run.step_done(config.global_batch, loss)
        with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
            measurement.value = accuracy(model, batches, precision, ranks)


def count_correct(model: Bert | ReferenceBert, batch: MaskedBatch, precision: Precision) -> Tensor:
    """Return the number of masked tokens whose highest logit is the label's, a 0-dimensional int64 tensor."""
    with torch.inference_mode(), precision.autocast():
        return model.count_correct(batch)


def accuracy(model: Bert | ReferenceBert, batches: TextBatches, precision: Precision, ranks: ProcessGroup) -> float:
    """Return the fraction of the evaluation set's masked tokens predicted correctly, over all ranks.

    Raises:
        RuntimeError: the ranks together did not see every sequence once.
    """
    counts = torch.zeros(3, dtype=torch.int64, device=ranks.device)
    model.eval()
    for batch in batches.evaluation():
        counts[0] += count_correct(model, batch, precision)
        counts[1] += len(batch.labels)
        counts[2] += batch.global_samples
    correct, masked, seen = ranks.all_reduce_sum(counts).tolist()
    if seen != len(batches.eval_store):
        raise RuntimeError(
            f"evaluation saw {seen} sequences, but the set has {len(batches.eval_store)}; no accuracy was recorded."
        )
    return float(correct / masked)


def synthetic_batches(config: BertRunConfig, ranks: ProcessGroup, batch: BatchPlan) -> Iterator[list[MaskedBatch]]:
    """Yield the micro-batches of `config.warm_up_steps` steps."""
    parts = split(np.arange(batch.local), batch.micro)
    for step in range(config.warm_up_steps):
        first = step * len(parts) + 1
        yield [_random_batch(config, ranks, len(part), first + place) for place, part in enumerate(parts)]


def synthetic_evaluation(config: BertRunConfig, ranks: ProcessGroup) -> Iterator[MaskedBatch]:
    """Yield one evaluation batch if there are warm-up steps."""
    if config.warm_up_steps:
        yield _random_batch(config, ranks, max(1, config.data.eval_batch // ranks.world_size), 0)


def _random_batch(config: BertRunConfig, ranks: ProcessGroup, count: int, number: int) -> MaskedBatch:
    """Return batch `number`: `count` sequences of random tokens and lengths."""
    longest = config.data.longest
    drawn = sampling.random_uniform(0, number, np.arange(count), "warm-up", 1 + longest)
    lengths = np.maximum(5, (drawn[:, 0] * (longest + 1)).astype(np.int64))
    predicted = prediction_counts(lengths, config.data.masked_fraction, config.data.max_predictions)
    starts = np.cumsum(lengths) - lengths
    masked = np.concatenate([start + 1 + np.arange(many) for start, many in zip(starts, predicted, strict=True)])
    tokens = (drawn[:, 1:].ravel()[: lengths.sum()] * config.architecture.vocabulary).astype(np.int64)
    return collate(
        MaskedSequences(tokens, lengths, lengths // 2 + 1, masked, predicted, tokens[masked]),
        longest=longest,
        padded=not config.speed.unpadding,
        row_multiple=config.speed.row_multiple,
        global_samples=count,
        global_masked=len(masked),
    ).to(ranks.device)


if __name__ == "__main__":
    from timedrun.cli import main

    sys.exit(main(["run", "language_model", *sys.argv[1:]]))
