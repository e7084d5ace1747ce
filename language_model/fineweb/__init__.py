"""The task of the modded-nanogpt speed runs: GPT-2 124M on FineWeb, timed to a loss of 3.28, by the modules of GPT."""

from __future__ import annotations

from timedrun.benchmark import EVERYTHING, BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Language modelling: GPT-2 124M on FineWeb to a validation loss of 3.28 nats per token",
    mlperf_benchmark="gpt_124m_fineweb",
    ruleset="beyond_mlperf",
    default_data="fineweb",
    supports=EVERYTHING,
)
