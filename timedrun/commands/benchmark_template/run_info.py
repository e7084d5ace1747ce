"""The model, and what the log records of it before the clock starts."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from timedrun.methods import Stack, stack
from timedrun.methods.training.optim import build_optimizer
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan
from timedrun.runner.run.run_info import RunInfo, optimizer_info

from .configs import Config
from .datasets import EVALUATION, TRAIN


def build(config: Config, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, Stack]:
    """Return the model from `config.seed` with its methods, the optimizer, and the methods."""
    torch.manual_seed(config.seed)
    places = ("before_step", "batch", "after_step", "evaluation")  # those that train.py calls
    width, methods = config.hidden, stack(*config.methods, seed=config.seed, places=places)
    steps = config.total_epochs * (TRAIN // config.global_batch)
    methods.require_reach(1 - 1 / config.total_epochs, steps)  # a method that acts later would do nothing
    with device:
        layers = [nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)]
        model = methods.model(nn.Sequential(*layers))
    return model, build_optimizer(config.optimizer, model), methods


def run_info(config: Config, optimizer: torch.optim.Optimizer) -> RunInfo:
    """Return sizes and hyper-parameters for the log."""
    return {
        "train_samples": TRAIN,
        "eval_samples": EVALUATION,
        "hyperparameters": {**optimizer_info(config.optimizer, optimizer), "gradient_accumulation_steps": 1},
        "methods": [method.name for method in config.methods],
    }


def plan(config: Config, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """Plan the dry run of `timedrun preflight`, on a model without memory."""
    _, optimizer, _ = build(config, torch.device("meta"))
    return Plan(run_info(config, optimizer), config.total_epochs)
