"""The model, what the log records of a run before its clock starts, and the plan of a dry run."""

from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from image_segmentation.batches import Facts
from image_segmentation.configs import SegmentationConfig
from image_segmentation.datasets import source_of
from image_segmentation.model import UNet
from timedrun.methods import Stack, stack
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.initialisation import on_meta_device
from timedrun.methods.training.optim import build_optimizer
from timedrun.methods.training.train_state import seed_everything
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan, facts_or_declared
from timedrun.runner.run.run_info import RunInfo, epochs_info

PLACES = ("before_step", "batch", "backward", "gradients", "after_step", "evaluation")
"""Calls of the methods that `train` makes."""


def build(
    config: SegmentationConfig, known: Facts, rank: int, device: torch.device
) -> tuple[nn.Module, torch.optim.Optimizer, Stack]:
    """Return the model from `config.seed` with its methods, on `device` or "meta", the optimizer, and the methods."""
    methods = stack(*config.methods, seed=config.seed, rank=rank, places=PLACES)
    epoch_steps = config.epoch_steps(known.train_samples)
    steps = config.total_epochs * epoch_steps
    methods.require_reach(config.progress(steps - 1, epoch_steps), steps)
    seed_everything(config.seed)
    with on_meta_device() if device.type == "meta" else nullcontext():
        model = methods.model(UNet(known.channels, known.classes, config.widths)).to(device)
    return model, build_optimizer(config.optimizer, model), methods


def run_info(config: SegmentationConfig, known: Facts, ranks: int, optimizer: torch.optim.Optimizer) -> RunInfo:
    """Return sizes and hyper-parameters for the log."""
    return {
        "train_samples": known.train_samples,
        "eval_samples": known.eval_samples,
        "hyperparameters": epochs_info(config, optimizer, BatchPlan.of(config.global_batch, config.micro_batch, ranks)),
        "methods": [method.name for method in config.methods],
    }


def plan(config: SegmentationConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """Plan a dry run: build on the meta device, with declared facts if the data is missing."""
    source = source_of(config)
    known, missing = facts_or_declared(lambda: source(data_folder).facts, source.declared)
    _, optimizer, _ = build(config, known, ranks.rank, torch.device("meta"))
    return Plan(run_info(config, known, ranks.world_size, optimizer), config.total_epochs, missing)
