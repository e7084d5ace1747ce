"""Benchmarks outside of MLPerf, under the general rules of its open division; MLCommons' tools do not know them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents.rounds import training_2_1
from mlevents.rounds.ruleset import BenchmarkRules, EvaluationInterval, next_round

GPT_125M: Final = BenchmarkRules(
    name="gpt_125m",
    dataset="openwebtext",
    metric="validation loss",
    target=3.1826,  # ln 24.11: the perplexity that MosaicML Composer's README of 2022 gives for its GPT-2 125M
    direction="<=",
    runs=5,  # our own choice
    unit="samples",
    evaluation_interval=EvaluationInterval(constant=512_000),  # our own choice: 1,000 steps of the published batch
)

RULESET: Final = replace(
    next_round(training_2_1.RULESET, "beyond_mlperf", dropped=training_2_1.RULESET.benchmarks, benchmarks=[GPT_125M]),
    round="none",
    checker="",
)
