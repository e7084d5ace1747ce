"""Metadata of a BERT run that the log records before the clock starts, and the plan of a dry run."""

from pathlib import Path

import torch

from language_model.build import Parts, build
from language_model.configs import BertRunConfig
from language_model.datasets import declared, facts
from language_model.encoder import shapes
from language_model.initial_checkpoint import mlperf_name
from mlevents import keys
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.schedule import StepSchedule
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan, facts_or_declared
from timedrun.runner.run.run_info import RunInfo, optimizer_info, precision_info


def run_info(config: BertRunConfig, parts: Parts) -> RunInfo:
    """Return the metadata that the log records before the clock starts."""
    closed = config.submission.division == keys.CLOSED
    return {
        "train_samples": parts.facts.train_samples,
        "eval_samples": parts.facts.eval_samples,
        "hyperparameters": {
            **optimization(config, config.schedule, parts.optimizer, parts.batch),
            "max_sequence_length": config.data.longest,
            "max_predictions_per_seq": config.data.max_predictions,
            "masked_fraction": config.data.masked_fraction,
            "implementation": config.implementation,
            "attention": parts.attention,
            "initial_weights": parts.initial_weights,
            "data_sha256": parts.facts.digest,
        },
        "methods": [
            *(method.name for method in config.methods),
            *config.effective_speed_ups(parts.ranks, parts.attention),
        ],
        "initialized_tensors": [mlperf_name(name) for name in shapes(config.architecture)] if closed else [],
    }


def plan(config: BertRunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """Plan a dry run: build on the meta device, with declared facts where the data is absent."""
    known, missing = facts_or_declared(lambda: facts(config.data, data_folder), declared(config))
    parts = build(config, ranks, known, torch.device("meta"))
    return Plan(run_info(config, parts), config.max_samples, missing)


def optimization(
    config: RunConfig, schedule: StepSchedule, optimizer: torch.optim.Optimizer, batch: BatchPlan
) -> dict[str, str | int | float | bool]:
    """Return the hyper-parameters of the optimization under MLPerf's names, where it has them."""
    closed_bert: dict[str, str | int | float | bool] = {}
    if config.optimizer.kind == "lamb":  # training_2.1.0/closed_bert.yaml; opt_epsilon was the round's own name
        closed_bert = {keys.NUM_WARMUP_STEPS: schedule.warmup_steps, keys.START_WARMUP_STEP: 0}
        closed_bert["opt_epsilon"] = config.optimizer.epsilon
        if schedule.kind == "polynomial":
            closed_bert["opt_lamb_learning_rate_decay_poly_power"] = schedule.power
    return {
        "gradient_accumulation_steps": batch.accumulation,
        "micro_batch_size": batch.micro,
        **optimizer_info(config.optimizer, optimizer),
        "opt_learning_rate_warmup_steps": schedule.warmup_steps,
        "opt_learning_rate_training_steps": schedule.steps,
        **closed_bert,
        "model_parameters": sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
        **precision_info(config, optimizer, attention=True),
    }
