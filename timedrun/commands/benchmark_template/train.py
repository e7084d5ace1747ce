"""The run, from the model to the target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timedrun.methods.training import sampling
from timedrun.methods.training.loss import cross_entropy
from timedrun.runner.run.timed_run import TimedRun

from .configs import Config
from .datasets import EVALUATION, TRAIN, spirals
from .run_info import build, run_info


def train(config: Config, run: TimedRun) -> None:
    """Train to `config.evaluation.target`, or for `config.total_epochs` epochs."""
    device = run.ranks.device
    model, optimizer, methods = build(config, device)
    run.track(model=model, optimizer=optimizer, methods=methods)  # restored after the warm-up, saved in checkpoints

    def step(points: Tensor, labels: Tensor, number: int, progress: float) -> Tensor:
        methods.before_step(model, number, progress)
        inputs, targets = methods.batch(points, labels, 2)
        loss = cross_entropy(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    blank = torch.zeros(config.global_batch, 2, device=device), torch.zeros(config.global_batch, device=device).long()
    run.warm_up(
        lambda batch: step(*batch, number=0, progress=0.0),
        [blank] * config.warm_up_steps,
        evaluate_step=lambda batch: accuracy(model, *batch),
        evaluate=[blank],
    )
    run.start_clock(run_info(config, optimizer))  # no datum is read before
    points, labels = (tensor.to(device) for tensor in spirals(TRAIN, seed=0))
    evaluation = [tensor.to(device) for tensor in spirals(EVALUATION, seed=1)]
    for block in run.blocks(config.total_epochs):  # one block between two evaluations
        for epoch in run.epochs(block):
            batches = sampling.steps(TRAIN, config.seed, epoch, config.global_batch)
            for batch in batches[run.position.step_in_epoch :]:  # a resumed run enters in the middle
                chosen = torch.from_numpy(batch).to(device)
                loss = step(points[chosen], labels[chosen], run.position.step, (epoch - 1) / config.total_epochs)
                methods.after_step(model)
                run.step_done(config.global_batch, loss)
        with run.evaluation(block, before_success=methods.verify) as measurement, methods.evaluation(model):
            measurement.value = accuracy(model, *evaluation)


@torch.inference_mode()
def accuracy(model: nn.Module, points: Tensor, labels: Tensor) -> float:
    """Return the share of points whose highest logit is their label."""
    return float((model(points).argmax(1) == labels).float().mean())
