"""Benchmarks outside of MLPerf, under the general rules of its open division; MLCommons' tools do not know them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_2_1
from mlevents.rounds.ruleset import BenchmarkRules, EvaluationInterval, Ruleset

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

RULESET: Final = Ruleset(
    name="beyond_mlperf",
    round="none",
    checker="",
    status_words=training_2_1.RULESET.status_words,
    init_minutes=training_2_1.RULESET.init_minutes,
    required=tuple(
        replace(required, vocabulary=(GPT_125M.name,)) if required.key == keys.SUBMISSION_BENCHMARK else required
        for required in training_2_1.RULESET.required
    ),
    closed_required=training_2_1.RULESET.closed_required,
    benchmarks={GPT_125M.name: GPT_125M},
)
