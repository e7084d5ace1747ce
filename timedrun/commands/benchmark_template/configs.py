"""Configs: functions named <data>_<config>; each public function of this file is one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from timedrun.methods import EMA, LabelSmoothing
from timedrun.runner.config import EvaluationConfig, OptimizerConfig, RunConfig


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """Settings of this benchmark, each an option such as --hidden 32."""

    hidden: int = 64
    """Width of the network."""
    total_epochs: int = 60
    """The run ends here if it does not reach its target before."""

    def stretched(self, ratio: float) -> Self:
        """Return this config with `ratio` times as many epochs and one evaluation, for `timedrun race --ratios`."""
        epochs = max(1, round(self.total_epochs * ratio))
        return replace(self, total_epochs=epochs, evaluation=replace(self.evaluation, every=epochs, first=epochs))


def spirals_baseline() -> Config:
    """AdamW at a constant rate."""
    return Config(
        benchmark="benchmark_template",
        name="spirals_baseline",
        notes="Own choice.",
        dataset="spirals",
        global_batch=50,
        optimizer=OptimizerConfig(kind="adamw", peak_lr=0.001),
        evaluation=EvaluationConfig(target=0.97, every=2, first=2),
    )


def spirals_methods() -> Config:
    """The baseline with label smoothing, evaluated on averaged weights."""
    methods = (LabelSmoothing(smoothing=0.05), EMA(half_life=40))
    return replace(spirals_baseline(), name="spirals_methods", methods=methods)
