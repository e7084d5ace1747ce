"""BERT masked language modelling, trained to a fixed accuracy on the clock (MLPerf Training v2.1, open division), and
GPT-125M beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timedrun.benchmark import BenchmarkSpec

if TYPE_CHECKING:
    from timedrun.config import RunConfig

SPEC = BenchmarkSpec(
    title="Language modelling: BERT-Large on Wikipedia to 0.720 masked-token accuracy; GPT-125M beside it",
    mlperf_benchmark="bert",
    ruleset="2.1.0",
    dataset="wikipedia",
    metric="masked-token accuracy",
    unit="samples",
    default_data="topics",
)

GPT = BenchmarkSpec(
    title="Language modelling: GPT-125M to a validation loss",
    mlperf_benchmark="gpt_125m",
    ruleset="beyond_mlperf",
    dataset="openwebtext",
    metric="validation loss",
    direction="<=",
    unit="samples",
    default_data="gpt_shakespeare",
)


def spec_of(config: RunConfig) -> BenchmarkSpec:
    """The card of what `config` trains: this folder holds two tasks."""
    from language_model.gpt.configs import GptRunConfig  # not at import: a card is read without torch

    return GPT if isinstance(config, GptRunConfig) else SPEC
