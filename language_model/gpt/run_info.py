"""Metadata of a GPT run that the log records before the clock starts, and the plan of a dry run."""

import math
from pathlib import Path

import torch

from language_model.gpt.build import Parts, build
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import declared, facts
from language_model.run_info import optimization
from mlevents import keys
from timedrun.methods.training.precision import AUTOCAST, WORDS
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan, facts_or_declared
from timedrun.runner.run.run_info import RunInfo


def run_info(config: GptRunConfig, parts: Parts) -> RunInfo:
    """Return the metadata that the log records before the clock starts."""
    schedule, optimizer = config.schedule, config.optimizer
    # Parameters of a sharded run travel in the type of autocast, and no rank has a replica of another's.
    sharding = {
        "sharding": config.sharding,
        "replica_check": "none: each rank has its own part of every parameter",
        keys.LOWEST_NUMERICAL_PRECISION_IN_COMM: WORDS[AUTOCAST[config.precision] or torch.float32],
    }
    return {
        "train_samples": parts.facts.train_samples,
        "eval_samples": parts.facts.eval_samples,
        "hyperparameters": {
            **optimization(config, schedule, parts.optimizer, parts.batch),
            **({"opt_adamw_weight_decay": optimizer.weight_decay} if optimizer.kind == "adamw" else {}),
            "opt_gradient_clip_norm": config.clip_norm,
            "opt_end_learning_rate": optimizer.peak_lr * schedule.factor(schedule.steps),
            "opt_learning_rate_decay_steps": schedule.decay_steps,
            "opt_learning_rate_decay_schedule": schedule.kind + (" with linear warmup" * bool(schedule.warmup_steps)),
            "max_steps": math.ceil(config.total_samples / config.global_batch),
            "max_sequence_length": config.model.context,
            "implementation": config.model.implementation,
            "data_sha256": parts.facts.digest,
            **(sharding if parts.sharded else {}),
        },
        "methods": [*(method.name for method in config.methods), *(["compile"] if config.compile else [])],
    }


def plan(config: GptRunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """Plan a dry run: build on the meta device, with declared facts where the data is absent."""
    known, missing = facts_or_declared(lambda: facts(data_folder, config.model.context, config.data), declared(config))
    parts = build(config, ranks, known, torch.device("meta"))
    return Plan(run_info(config, parts), config.total_samples, missing)
