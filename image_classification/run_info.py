"""Run info: the metadata that the log has of a run before its clock starts, for a run and for a dry run."""

from pathlib import Path

import torch

from image_classification.build import Parts, build
from image_classification.configs import ImageRunConfig
from image_classification.datasets import declared, facts
from image_classification.loaders.registry import LOADERS
from image_classification.settings import DataConfig
from image_classification.stores.manifest import describe_store
from mlevents import keys
from mlevents.runlog import Scalar
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.plan import Plan, facts_or_declared
from timedrun.runner.run.run_info import RunInfo, epochs_info


def run_info(config: ImageRunConfig, parts: Parts) -> RunInfo:
    """Return what the log records of the run before its clock starts, under MLPerf's names if it has them."""
    return {
        "train_samples": parts.facts.train_samples,
        "eval_samples": parts.facts.eval_samples,
        "hyperparameters": epochs_info(config, parts.optimizer, parts.batch) | data_info(config.data),
        "methods": [method.name for method in config.methods],
    }


def data_info(config: DataConfig) -> dict[str, Scalar]:
    """Return the logged settings of the path from disk to device: loader, store, order, workers, prefetch."""
    order: str = config.order
    if config.repeats > 1:
        order += f", {config.repeats} repetitions of each sample"
    if config.source != "image_folder":
        return {keys.DATA_LOADER: "memory", keys.DATA_ORDER: order}
    return {
        keys.DATA_LOADER: LOADERS[config.loader].description,
        keys.DATA_STORE: describe_store(config.store),
        keys.DATA_ORDER: order,
        keys.DATA_WORKERS: config.workers_here,
        keys.DATA_PREFETCH: config.prefetch,
    }


def plan(config: ImageRunConfig, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
    """Plan a dry run: build on the meta device, with declared facts if the data is missing."""
    known, missing = facts_or_declared(lambda: facts(config.data, data_folder), declared(config.data))
    parts = build(config, ranks, known, torch.device("meta"))
    return Plan(run_info(config, parts), config.total_epochs, missing)
