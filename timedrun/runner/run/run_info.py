"""Events of a run's log before its clock starts: submitter, platform and settings."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import torch
from torch.optim import Optimizer

from judging.ground.errors import TrainingLoopError
from judging.ground.result_files import CONFIG
from mlevents import keys
from mlevents.rounds.own_rules import as_recorded
from mlevents.runlog import Scalar
from timedrun.methods import GradientClipping
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.precision import AUTOCAST, WORDS
from timedrun.runner.benchmark import BenchmarkSpec
from timedrun.runner.config import EpochRunConfig, OptimizerConfig, RunConfig, digest


class RunInfo(TypedDict):
    """Facts of a benchmark's run for the log, in addition to those that every config holds."""

    train_samples: int
    eval_samples: int
    hyperparameters: NotRequired[Mapping[str, Scalar]]
    methods: NotRequired[Sequence[str]]
    initialized_tensors: NotRequired[Sequence[str]]
    """MLPerf's names of the model's tensors, which rounds up to v2.1 require in the closed division."""


def submission_of(spec: BenchmarkSpec, config: RunConfig, platform: str) -> dict[str, Scalar]:
    """Return benchmark, submitter, division and platform, by the log's keys."""
    submission = config.submission
    return {
        keys.SUBMISSION_BENCHMARK: spec.mlperf_benchmark,
        **({keys.BENCHMARK_RULES: as_recorded(spec.own_rules)} if spec.own_rules is not None else {}),
        keys.SUBMISSION_DIVISION: submission.division,
        keys.SUBMISSION_ORG: submission.organization,
        keys.SUBMISSION_PLATFORM: platform,
        keys.SUBMISSION_STATUS: submission.status,
    }


def settings_of(config: RunConfig, info: RunInfo) -> dict[str, Scalar]:
    """Return `config` and `info` by the log's keys. The ranks are data parallel, so every other parallelism is 1. Raise
    TrainingLoopError if `info` lacks a size."""
    if missing := [key for key in (keys.TRAIN_SAMPLES, keys.EVAL_SAMPLES) if key not in info]:
        raise TrainingLoopError(f"the run info has no {' and no '.join(missing)}; add it in run_info.py")
    clips = [clip.threshold for clip in config.methods if isinstance(clip, GradientClipping) and clip.by == "norm"]
    return {
        keys.SEED: config.seed,
        keys.GLOBAL_BATCH_SIZE: config.global_batch,
        keys.DATASET: config.dataset,
        keys.QUALITY_TARGET: config.evaluation.target,
        keys.CONFIG_NAME: config.name,
        keys.CONFIG_DIGEST: digest(config),
        keys.CONFIG_FILENAME: CONFIG,
        keys.TENSOR_PARALLELISM: 1,
        keys.PIPELINE_PARALLELISM: 1,
        keys.CONTEXT_PARALLELISM: 1,
        keys.EXPERT_PARALLELISM: 1,
        keys.TRAIN_SAMPLES: info["train_samples"],
        keys.EVAL_SAMPLES: info["eval_samples"],
        **info.get("hyperparameters", {}),
        **({keys.OPT_GRADIENT_CLIP_NORM: clips[0]} if clips else {}),
        keys.WEIGHTS_INITIALIZATION: info.get("initialized_tensors", ()),
        keys.METHOD: info.get("methods", ()),
    }


def epochs_info(config: EpochRunConfig, optimizer: Optimizer, batch: BatchPlan) -> dict[str, Scalar]:
    """Return the hyper-parameters of a run that counts epochs, of a model without attention, under MLPerf's names."""
    return {
        "gradient_accumulation_steps": batch.accumulation,
        "micro_batch_size": batch.micro,
        **optimizer_info(config.optimizer, optimizer),
        "opt_learning_rate_warmup_epochs": config.schedule.warmup_epochs_scaled,
        "opt_learning_rate_decay_epochs": config.schedule.epochs_scaled,
        "model_parameters": sum(p.numel() for group in optimizer.param_groups for p in group["params"]),
        **precision_info(config, optimizer, attention=False),
    }


def optimizer_info(config: OptimizerConfig, optimizer: Optimizer) -> dict[str, Scalar]:
    """Return the hyper-parameters that each group of `optimizer` uses, under MLPerf's names (mllog/constants.py); Muon
    has none there, so its keys begin with `opt_muon`, and those of its other parameters with `opt_other`."""
    facts: dict[str, Scalar] = {
        keys.OPT_NAME: config.kind,
        keys.OPT_BASE_LR: optimizer.param_groups[0]["initial_lr"],
        keys.OPT_LAMB_WEIGHT_DECAY if config.kind == "lamb" else keys.OPT_WEIGHT_DECAY: config.weight_decay,
    }
    for group in optimizer.param_groups:
        rule = group.get("rule", config.kind)
        if rule == "muon":
            facts |= {"opt_muon_momentum": group["momentum"], "opt_muon_iterations": group["iterations"]}
            facts |= {"opt_muon_unit_filters": True} if group["unit_filters"] else {}
            facts |= {"opt_muon_neuron_beta2": group["neuron_beta2"]} if group["neuron_beta2"] else {}
            facts |= {"opt_muon_bf16": True} if group["bf16"] else {}
            continue
        if config.head_lr and group is optimizer.param_groups[-1]:
            facts["opt_head_base_learning_rate"] = group["initial_lr"]
            continue
        if config.kind == "muon":
            facts |= {"opt_other_name": rule, "opt_other_base_learning_rate": group["initial_lr"]}
            facts |= {"opt_other_every": group["every"]} if group.get("every", 1) > 1 else {}
        if "betas" in group:
            kind = "lamb" if rule == "lamb" else "adamw"
            beta_1, beta_2 = group["betas"]
            facts |= {keys.OPT_GRADIENT_CLIP_NORM: group["max_grad_norm"]} if rule == "lamb" else {}
            facts |= {f"opt_{kind}_beta_1": beta_1, f"opt_{kind}_beta_2": beta_2, f"opt_{kind}_epsilon": group["eps"]}
        else:
            facts["opt_other_momentum" if config.kind == "muon" else "sgd_opt_momentum"] = group["momentum"]
    return facts


def precision_info(config: RunConfig, optimizer: Optimizer, *, attention: bool) -> dict[str, str | bool]:
    """Return the keys of a run's numeric precision under MLPerf's names, required from round 6.1 on, and on CUDA the
    switches of `set_backends`.

    Matrix products and attention have the type of autocast. Gradients are reduced in the parameters' own type.

    Args:
        attention: the model has attention.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    on_cuda = parameters[0].is_cuda
    products = WORDS[AUTOCAST[config.precision] or torch.float32]
    if products == "fp32" and config.tf32 and on_cuda:
        products = "tf32"
    return {
        "precision": config.precision,
        **({"tf32": config.tf32, "cudnn_benchmark": config.cudnn_benchmark} if on_cuda else {}),
        keys.LOWEST_NUMERICAL_PRECISION_IN_LINEAR: products,
        **({keys.LOWEST_NUMERICAL_PRECISION_IN_ATTN: products} if attention else {}),
        keys.LOWEST_NUMERICAL_PRECISION_IN_COMM: WORDS[min((p.dtype for p in parameters), key=lambda d: d.itemsize)],
    }
