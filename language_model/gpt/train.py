"""The run of causal language modelling, top to bottom: build, warm up, start the clock, train, evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import TokenBatch, TokenData, TokenFacts, data_files, declared, facts
from language_model.gpt.model import build_model, token_losses
from language_model.gpt.optimizer import build_gpt_optimizer
from language_model.hyperparameters import optimization
from timedrun.distributed.process_group import ProcessGroup
from timedrun.errors import UsageError
from timedrun.methods import stack
from timedrun.preflight.plan import Plan, facts_or_declared
from timedrun.run.timed_run import RunInfo, TimedRun
from timedrun.run.train_state import seed_everything
from timedrun.training import sampling
from timedrun.training.batch_plan import BatchPlan
from timedrun.training.precision import Precision


def train(config: GptRunConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` nats a token of validation text, or to `config.total_samples`."""
    if problems := config.problems():  # under another launcher nothing was asked before
        raise UsageError(" ".join(problems))
    ranks, device, context = run.ranks, run.ranks.device, config.model.context
    known = facts(run.data_folder, context)
    methods = stack(*config.methods)
    model = methods.model(build_model(config.model, config.seed)).to(device)
    optimizer = build_gpt_optimizer(config.optimizer, model, adam_beta1=config.adam_beta1)
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    precision = Precision(config.precision, device)
    schedule = config.schedule
    seed_everything(sampling.stream_seed(config.seed, "training", ranks.rank))  # dropout differs between ranks
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)

    if config.compile:
        model.compile()  # in place: names in state dicts stay what they are
    parallel = ranks.wrap(model)
    run.straggler.attach(parallel)
    plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)

    def step(batch: TokenBatch, *, number: int) -> Tensor:
        """Optimizer step `number` (from 0) over all ranks; returns this rank's mean loss in nats a token."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule.factor(number)
        progress = min(1.0, number / schedule.steps)
        inputs, targets = methods.batch(batch.inputs, batch.targets, progress, config.model.vocabulary)
        # A method may have cut the sequences: as many tokens at a time as a micro-batch of whole ones have.
        rows = max(1, plan.micro * context // inputs.shape[1])
        pieces = list(zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True))
        total = torch.zeros((), device=device)
        for place, (tokens, following) in enumerate(pieces, 1):
            with ranks.accumulate(parallel, last=place == len(pieces)):
                with precision.autocast():
                    logits = parallel(tokens)
                # Every rank has as many tokens, so DDP's mean over ranks is the mean over all tokens of the batch.
                loss = token_losses(logits, following) / targets.numel()
                precision.backward(loss)
            total += loss.detach()
        if config.clip_norm:
            precision.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(trained, config.clip_norm)
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        return total

    run.warm_up(
        lambda warm: step(warm[1], number=warm[0]),
        synthetic_batches(config, ranks, plan),
        evaluate_step=lambda batch: sum_losses(model, batch, precision),
        evaluate=synthetic_evaluation(config, ranks),
    )
    run.start_clock(run_info(config, optimizer, known, ranks), files=data_files(run.data_folder))
    data = TokenData(
        config.data, run.data_folder, ranks, length=context, global_batch=config.global_batch, seed=config.seed
    )
    for block in run.blocks(config.total_samples):
        model.train()
        for number in run.steps(block):
            loss = step(data.train(number), number=number)
            methods.after_step(model, number + 1)
            run.step_done(config.global_batch, loss)
        with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
            measurement.value = validation_loss(model, data, precision, ranks, known.eval_tokens)


def run_info(config: GptRunConfig, optimizer: torch.optim.Optimizer, known: TokenFacts, ranks: ProcessGroup) -> RunInfo:
    """What the log says of a GPT's run before its clock starts."""
    plan = BatchPlan.of(config.global_batch, config.micro_batch, ranks.world_size)
    beta1 = config.adam_beta1 if config.optimizer.kind == "muon" else config.optimizer.momentum
    return {
        "train_samples": known.train_samples,
        "eval_samples": known.eval_samples,
        "hyperparameters": {
            **optimization(config, optimizer, config.schedule, beta1=beta1, plan=plan),
            "opt_gradient_clip_norm": config.clip_norm,
            "max_sequence_length": config.model.context,
            "implementation": config.model.implementation,
            "data_sha256": known.digest,
        },
        "methods": [*(method.name for method in config.methods), *(["compile"] if config.compile else [])],
    }


def rehearse(config: GptRunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """What `train` would announce and how long it would go on at most, from a model that takes no memory."""
    known, missing = facts_or_declared(lambda: facts(data_folder, config.model.context), declared(config.model))
    with torch.device("meta"):
        model = stack(*config.methods).model(build_model(config.model, config.seed))
    optimizer = build_gpt_optimizer(config.optimizer, model, adam_beta1=config.adam_beta1)
    return Plan(run_info(config, optimizer, known, ranks), config.total_samples, missing)


def sum_losses(model: nn.Module, batch: TokenBatch, precision: Precision) -> Tensor:
    """Sum of the losses in nats of all tokens of `batch`."""
    with torch.inference_mode():
        with precision.autocast():
            logits = model.forward(
                batch.inputs
            )  # never compiled: the last sequence of the split has a length of its own
        return token_losses(logits, batch.targets)


def validation_loss(
    model: nn.Module, data: TokenData, precision: Precision, ranks: ProcessGroup, expected: int
) -> float:
    """Mean loss in nats a token over the whole validation split, every token counted once over all ranks.

    Raises:
        RuntimeError: the tokens counted are not the `expected` number.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    model.eval()
    for batch in data.evaluation():
        sums[0] += sum_losses(model, batch, precision)
        sums[1] += batch.targets.numel()
    total, seen = ranks.sum(sums).tolist()
    if seen != expected:
        raise RuntimeError(f"evaluation saw {seen:.0f} tokens, but the split has {expected}; its loss would be wrong.")
    return float(total / seen)


def noise(config: GptRunConfig, ranks: ProcessGroup, count: int) -> TokenBatch:
    """Return a batch of random tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.model.vocabulary, (count, config.model.context + 1), generator=generator)
    tokens = tokens.to(ranks.device)
    return TokenBatch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), count * ranks.world_size)


def synthetic_evaluation(config: GptRunConfig, ranks: ProcessGroup) -> Iterator[TokenBatch]:
    """Yield one evaluation batch of random tokens if the run warms up."""
    if config.warm_up_steps:
        yield noise(config, ranks, max(1, config.data.eval_batch // ranks.world_size))


def synthetic_batches(config: GptRunConfig, ranks: ProcessGroup, plan: BatchPlan) -> Iterator[tuple[int, TokenBatch]]:
    """Yield `warm_up_steps` batches of random tokens for every shape that the run's methods make of a batch, the
    largest first, each with a step that has this shape."""
    if not config.warm_up_steps:
        return
    methods, whole = stack(*config.methods), torch.zeros(plan.local, config.model.context, dtype=torch.uint8)
    shapes: dict[torch.Size, int] = {}
    for number in range(config.schedule.steps if config.methods else 1):
        inputs, _ = methods.batch(whole, whole, number / config.schedule.steps, config.model.vocabulary)
        shapes.setdefault(inputs.shape, number)
    for shape in sorted(shapes, key=lambda shape: (shape.numel(), shape), reverse=True):
        for _ in range(config.warm_up_steps):
            yield shapes[shape], noise(config, ranks, plan.local)
