"""Benchmarks outside of MLPerf, under the general rules of its open division; MLCommons' tools do not know them."""

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds.ruleset import BenchmarkRules, EvaluationInterval, next_round
from mlevents.rounds.training import V2_1

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

GPT_124M_FINEWEB: Final = BenchmarkRules(
    name="gpt_124m_fineweb",
    dataset="fineweb",
    metric="validation loss",
    target=3.28,  # of the modded-nanogpt speed runs, on the first 10,485,760 tokens of FineWeb's validation shard
    direction="<=",
    runs=5,  # our own choice; the mean of runs of one length is another question: `score --target-test`
    unit="samples",
    evaluation_interval=EvaluationInterval(constant=64_000),  # our own choice: 125 steps of 524,288 tokens
    samples={keys.EVAL_SAMPLES: (10_240, 10_240)},  # sequences of 1,024 tokens
)

RULESET: Final = replace(
    next_round(V2_1, "beyond_mlperf", dropped=V2_1.benchmarks, benchmarks=[GPT_125M, GPT_124M_FINEWEB]),
    round="none",
    checker="",
)
