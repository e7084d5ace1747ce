"""The run of masked language modelling, top to bottom: build, warm up, start the clock, train, evaluate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from language_model.attention import choose
from language_model.batch import MaskedBatch
from language_model.collator import collate
from language_model.configs import BertRunConfig
from language_model.datasets import CHECKPOINT, TextData, TextFacts, declared, facts, pieces, resolve
from language_model.encoder import Bert, build_bert
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.train import rehearse as rehearse_gpt
from language_model.gpt.train import train as train_gpt
from language_model.hyperparameters import optimization
from language_model.masking import prediction_counts
from language_model.model import ReferenceBert, build_reference
from language_model.tensorflow_checkpoint.initial_checkpoint import load_initial_checkpoint, weights_sha256
from language_model.text.store import MaskedSequences, read_manifest
from language_model.weights import load_into
from timedrun.config import RunConfig
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import UsageError
from timedrun.methods import stack
from timedrun.preflight.plan import Plan, facts_or_declared
from timedrun.run.timed_run import RunInfo, TimedRun
from timedrun.run.train_state import seed_everything
from timedrun.training import sampling
from timedrun.training.batch_plan import BatchPlan
from timedrun.training.optim import build_optimizer
from timedrun.training.precision import Precision


def train(config: RunConfig, run: TimedRun) -> None:
    """Train to the target of `config`: a BERT here, a GPT in `language_model.gpt.train`."""
    if isinstance(config, BertRunConfig):
        train_bert(config, run)
    elif isinstance(config, GptRunConfig):
        train_gpt(config, run)
    else:
        raise TypeError(f"{config.name} is a {type(config).__name__}, neither a BERT's config nor a GPT's")


def train_bert(config: BertRunConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` masked-token accuracy or to `config.max_samples`."""
    if problems := config.problems():  # under another launcher nothing was asked before
        raise UsageError(" ".join(problems))
    ranks, device, speed = run.ranks, run.ranks.device, config.speed
    store = resolve(config.data, run.data_folder)
    known = facts(store)
    methods = stack(*config.methods)
    precision = Precision(config.precision, device)
    model = build_model(config)
    start = "random"
    if config.start == "checkpoint":
        weights = load_initial_checkpoint(store / CHECKPOINT, config.architecture)
        load_into(model, weights)
        start = weights_sha256(weights)
    model.to(device)
    attention = attention_of(config, precision)
    optimizer = build_optimizer(config.optimizer, model, fused=speed.fused_optimizer)
    schedule = config.schedule
    seed_everything(sampling.stream_seed(config.seed, "training", ranks.rank))  # dropout differs between ranks
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)

    if config.compile:
        if ranks.world_size > 1:  # its split at gradient buckets does not take sizes that vary
            torch._dynamo.config.optimize_ddp = False
        model.compile()  # in place: names in state dicts stay what they are
    parallel = ranks.wrap(model)
    run.straggler.attach(parallel)
    plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)

    def step(batches: list[MaskedBatch], *, number: int) -> Tensor:
        """Optimizer step `number` (from 0) over all ranks; returns this rank's part of the mean loss, times ranks."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule.factor(number)
        total: Tensor | None = None
        for place, batch in enumerate(batches, 1):
            # The mean over all masked tokens of the global batch, however unequally ranks share them: DDP averages.
            weight = ranks.world_size / batch.global_masked
            with ranks.accumulate(parallel, last=place == len(batches)):
                with precision.autocast():
                    loss = parallel(batch) * weight
                precision.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        assert total is not None  # a rank has at least one sequence of every batch: preflight sees to it
        return total

    run.warm_up(
        lambda batches: step(batches, number=schedule.warmup_steps),
        synthetic_batches(config, ranks, plan),
        evaluate_step=lambda batch: count_correct(model, batch, precision),
        evaluate=synthetic_evaluation(config, ranks),
    )
    run.start_clock(
        run_info(config, optimizer, known, ranks, attention=attention, start=start),
        files=[store / name for name in read_manifest(store).files],
    )
    data = TextData(config, store, ranks)
    for block in run.blocks(config.max_samples):
        model.train()
        for number in run.steps(block):
            loss = step(data.train_batch(number), number=number)
            methods.after_step(model, number + 1)
            run.step_done(config.global_batch, loss)
        with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
            measurement.value = accuracy(model, data, precision, ranks)


def run_info(
    config: BertRunConfig,
    optimizer: torch.optim.Optimizer,
    known: TextFacts,
    ranks: ProcessGroup,
    *,
    attention: str,
    start: str,
) -> RunInfo:
    """What the log says of a BERT's run before its clock starts; `start` names the weights it starts from."""
    plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
    beta1 = config.optimizer.momentum
    return {
        "train_samples": known.train_samples,
        "eval_samples": known.eval_samples,
        "hyperparameters": {
            **optimization(config, optimizer, config.schedule, beta1=beta1, plan=plan),
            "max_sequence_length": config.data.longest,
            "max_predictions_per_seq": config.data.max_predictions,
            "masked_fraction": config.data.masked_fraction,
            "implementation": config.implementation,
            "attention": attention,
            "initial_weights": start,
            "data_sha256": known.digest,
        },
        "methods": [*(method.name for method in config.methods), *config.effective_speed_ups(ranks, attention)],
    }


def rehearse(config: RunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """What `train` would announce and how long it would go on at most, from a model that takes no memory."""
    if isinstance(config, GptRunConfig):
        return rehearse_gpt(config, ranks, data_folder)
    assert isinstance(config, BertRunConfig)  # there is no third kind
    data = config.data
    known, missing = facts_or_declared(lambda: facts(resolve(data, data_folder)), declared(config))
    with torch.device("meta"):
        model: Bert | ReferenceBert = (
            Bert(config.architecture, config.speed)
            if config.implementation == "timedrun"
            else ReferenceBert(config.architecture, reference_attention(config))
        )
    try:
        attention = attention_of(config, Precision(config.precision, ranks.device))
    except UsageError:  # not on this machine, as `unavailable` says
        attention = config.speed.attention
    optimizer = build_optimizer(config.optimizer, model)
    announced = run_info(config, optimizer, known, ranks, attention=attention, start=config.start)
    return Plan(announced, config.max_samples, missing)


def build_model(config: BertRunConfig) -> Bert | ReferenceBert:
    """The model that `config` names, with the same first weights whoever computes it."""
    if config.implementation == "timedrun":
        return build_bert(config.architecture, config.seed, config.speed)
    return build_reference(config.architecture, config.seed, reference_attention(config))


def reference_attention(config: BertRunConfig) -> Literal["eager", "sdpa"]:
    """The attention that transformers' model is asked for."""
    return "eager" if config.speed.attention == "eager" else "sdpa"


def attention_of(config: BertRunConfig, precision: Precision) -> str:
    """The attention that computes this run, "auto" resolved."""
    if config.implementation == "transformers":
        return config.speed.attention
    dtype = precision.dtype or torch.float32
    return choose(config.speed.attention, precision.device, dtype, config.architecture.dropout)


def count_correct(model: Bert | ReferenceBert, batch: MaskedBatch, precision: Precision) -> Tensor:
    """Number of masked tokens whose highest logit is the right one."""
    with torch.inference_mode(), precision.autocast():
        return model.count_correct(batch)


def accuracy(model: Bert | ReferenceBert, data: TextData, precision: Precision, ranks: ProcessGroup) -> float:
    """Share of the evaluation set's masked tokens predicted right, every token counted once over all ranks.

    Raises:
        RuntimeError: not every sequence of the set was seen.
    """
    counts = torch.zeros(3, dtype=torch.int64, device=ranks.device)
    model.eval()
    for batch in data.evaluation():
        counts[0] += count_correct(model, batch, precision)
        counts[1] += len(batch.labels)
        counts[2] += batch.global_samples
    correct, masked, seen = ranks.sum(counts).tolist()
    if seen != len(data.eval_store):
        raise RuntimeError(
            f"evaluation saw {seen} sequences, but the set has {len(data.eval_store)}; its accuracy would be wrong."
        )
    return float(correct / masked)


def noise(config: BertRunConfig, ranks: ProcessGroup, count: int, number: int) -> MaskedBatch:
    """Return synthetic batch `number`: `count` sequences of random tokens and lengths."""
    longest = config.data.longest
    drawn = sampling.random_uniform(0, number, np.arange(count), "warm-up", 1 + longest)
    lengths = np.maximum(5, (drawn[:, 0] * (longest + 1)).astype(np.int64))
    predicted = prediction_counts(lengths, config.data.masked_fraction, config.data.max_predictions)
    starts = np.cumsum(lengths) - lengths
    places = np.concatenate([start + 1 + np.arange(many) for start, many in zip(starts, predicted, strict=True)])
    tokens = (drawn[:, 1:].ravel()[: lengths.sum()] * config.architecture.vocabulary).astype(np.int64)
    sequences = MaskedSequences(tokens, lengths, lengths // 2 + 1, places, predicted, tokens[places])
    return collate(
        sequences,
        longest=longest,
        padded=not config.speed.unpadding,
        row_multiple=config.speed.row_multiple,
        global_samples=count,
        global_masked=len(places),
    ).to(ranks.device)


def synthetic_evaluation(config: BertRunConfig, ranks: ProcessGroup) -> Iterator[MaskedBatch]:
    """Yield one synthetic evaluation batch if the run warms up."""
    if config.warm_up_steps:
        yield noise(config, ranks, max(1, config.data.eval_batch // ranks.world_size), 0)


def synthetic_batches(config: BertRunConfig, ranks: ProcessGroup, plan: BatchPlan) -> Iterator[list[MaskedBatch]]:
    """Yield the synthetic micro-batches of `warm_up_steps` steps."""
    parts = pieces(np.arange(plan.local), plan.micro)
    for number in range(config.warm_up_steps):
        yield [noise(config, ranks, len(part), number * len(parts) + place + 1) for place, part in enumerate(parts)]


if __name__ == "__main__":
    from timedrun.cli import main

    sys.exit(main(["run", "language_model", *sys.argv[1:]]))
