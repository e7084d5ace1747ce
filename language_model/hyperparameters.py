"""What the log says of a run's optimization, from the objects that were built, by MLPerf's names where it has them."""

from __future__ import annotations

import torch

from timedrun.config import OptimizerConfig, RunConfig
from timedrun.training.batch_plan import BatchPlan
from timedrun.training.schedule import StepSchedule

Hyperparameters = dict[str, str | int | float | bool]


def optimization(
    config: RunConfig,
    optimizer: torch.optim.Optimizer,
    schedule: StepSchedule,
    *,
    beta1: float,
    plan: BatchPlan,
) -> Hyperparameters:
    """Return the logged names and values."""
    settings: OptimizerConfig = config.optimizer
    return {
        "gradient_accumulation_steps": plan.accumulation,
        "opt_name": settings.kind,
        "opt_base_learning_rate": optimizer.param_groups[0]["initial_lr"],
        "opt_learning_rate_warmup_steps": schedule.warmup_steps,
        "opt_learning_rate_training_steps": schedule.steps,
        "opt_weight_decay": settings.weight_decay,
        "opt_adamw_beta_1": beta1,
        "opt_adamw_beta_2": settings.beta2,
        "opt_adamw_epsilon": settings.epsilon,
        "model_parameters": sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
        "precision": config.precision,
    }
