"""Training loop of causal language modelling: build, warm up, start the clock, train, evaluate."""

from contextlib import closing

import torch
from torch import Tensor, nn

from judging.ground.errors import UsageError
from language_model.gpt import warm_up
from language_model.gpt.batches import TokenBatch, TokenBatches, open_batches
from language_model.gpt.build import build
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import facts
from language_model.gpt.model import Decoder, NextTokenLoss
from language_model.gpt.run_info import run_info
from timedrun.methods.training import sampling
from timedrun.methods.training.precision import Precision
from timedrun.methods.training.train_state import seed_everything
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.sharding import no_gradients
from timedrun.runner.run.accumulation import backward
from timedrun.runner.run.timed_run import TimedRun


def train(config: GptRunConfig, run: TimedRun) -> None:
    """Train to `config.evaluation.target` nats per token of validation text, or for `config.total_samples` samples.
    Raises UsageError if the settings contradict each other; DataError if the data is missing or damaged."""
    if problems := config.problems():  # runs started by another launcher have had no preflight
        raise UsageError(" ".join(problems))
    ranks, schedule, context = run.ranks, config.schedule, config.model.context
    parts = build(config, ranks, facts(run.data_folder, context, config.data), ranks.device)
    model, optimizer, methods, precision = parts.model, parts.optimizer, parts.methods, parts.precision
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    seed_everything(sampling.stream_seed(config.seed, "training", ranks.rank))  # dropout differs between ranks
    run.track(model=model, optimizer=optimizer, methods=methods, precision=precision)

    # Compiled with its loss, which then needs no copy of the logits; a sharded model is wrapped already.
    summed = NextTokenLoss(model)
    if config.compile:
        summed.compile()
    parallel: nn.Module = summed
    if not parts.sharded:
        parallel = ranks.wrap(summed, find_unused_parameters=methods.skips_parameters)

    def widen(number: int) -> None:
        """Set the window of attention to that of optimizer step `number`."""
        if isinstance(model, Decoder) and model.window is not None:
            model.window.fill_(config.window(number))

    def share_of_loss(inputs: Tensor, targets: Tensor, tokens: int) -> Tensor:
        """Return the part of a micro-batch in the mean loss of a batch of `tokens`."""
        loss: Tensor = parallel(inputs, targets) / tokens
        return loss

    def step(batch: TokenBatch, *, number: int) -> Tensor:
        """Take optimizer step `number` (from 0). Returns this rank's mean loss in nats per token."""
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule.factor(number)
        widen(number)
        methods.before_step(model, number, min(1.0, number / schedule.steps))
        inputs, targets = methods.batch(batch.inputs, batch.targets, config.model.vocabulary)
        # Methods may shorten sequences: a micro-batch has as many tokens as `micro` whole sequences.
        rows = max(1, parts.batch.micro * context // inputs.shape[1])
        # All ranks have the same number of tokens, so the mean over ranks of their mean losses is that over all tokens.
        pieces = [
            (tokens, following, targets.numel())
            for tokens, following in zip(torch.split(inputs, rows), torch.split(targets, rows), strict=True)
        ]
        loss = backward(pieces, share_of_loss, parallel, model=model, methods=methods, precision=precision, ranks=ranks)
        precision.unscale(optimizer)
        methods.gradients(model)
        if config.clip_norm:
            nn.utils.clip_grad_norm_(trained, config.clip_norm)
        precision.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
        return loss

    # Before the clock: every length of a batch is compiled and allocated once; then all state is restored.
    run.warm_up(
        lambda synthetic: step(synthetic[1], number=synthetic[0]),
        warm_up.train_batches(config, ranks, parts.batch),
        evaluate_step=lambda batch: sum_losses(summed, batch, precision),
        evaluate=warm_up.evaluation_batches(config, ranks),
    )
    run.start_clock(run_info(config, parts))
    # On the clock, on which the data is opened, too.
    with closing(open_batches(config, run.data_folder, ranks)) as batches:
        for block in run.blocks(config.total_samples):
            model.train()
            for number, batch in zip(run.steps(block), batches.train(run.position.step), strict=False):
                loss = step(batch, number=number)
                methods.after_step(model)
                run.step_done(config.global_batch, loss)
            widen(run.position.step)
            with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
                measurement.value = validation_loss(summed, batches, precision, ranks, parts.facts.eval_tokens)


def sum_losses(summed: NextTokenLoss, batch: TokenBatch, precision: Precision, *, compiled: bool = True) -> Tensor:
    """Return the sum of the losses in nats of all tokens of `batch`."""
    with no_gradients(summed.model), precision.autocast():
        losses: Tensor = (summed if compiled else summed.forward)(batch.inputs, batch.targets)
    return losses


def validation_loss(
    summed: NextTokenLoss, batches: TokenBatches, precision: Precision, ranks: ProcessGroup, expected: int
) -> float:
    """Return the mean loss in nats per token of the whole validation split, over all ranks. Raises RuntimeError if the
    ranks together did not see `expected` tokens."""
    sums = torch.zeros(2, dtype=torch.float64, device=ranks.device)
    whole = (batches.config.evaluation_batch(ranks.world_size), batches.length)  # the shape of the warm-up
    summed.model.eval()
    with torch.inference_mode():  # batches made in it, as the warm-up's: compiled code is for one kind of tensor
        for batch in batches.evaluation():
            sums[0] += sum_losses(summed, batch, precision, compiled=batch.inputs.shape == whole)
            sums[1] += batch.targets.numel()
    total, seen = ranks.all_reduce_sum(sums).tolist()
    if seen != expected:
        raise RuntimeError(f"evaluation saw {seen:.0f} tokens, but the split has {expected}; no loss was recorded.")
    return float(total / seen)
