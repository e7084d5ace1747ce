"""Causal language modelling, timed to a target validation loss: the specs of three benchmarks with one decoder."""

from timedrun.runner.benchmark import EVERYTHING, BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Language modelling: GPT-125M on OpenWebText to a validation loss of 3.1826 nats per token",
    mlperf_benchmark="gpt_125m",
    ruleset="beyond_mlperf",
    default_data="shakespeare",
    supports=EVERYTHING,
)

FINEWEB = BenchmarkSpec(
    title="Language modelling: GPT-2 124M on FineWeb to a validation loss of 3.28 nats per token",
    mlperf_benchmark="gpt_124m_fineweb",
    ruleset="beyond_mlperf",
    default_data="fineweb",
    supports=EVERYTHING,
)
"""The task of the modded-nanogpt speed runs."""

LLAMA31_8B = BenchmarkSpec(
    title="Language modelling: Llama 3.1 8B on C4 to a log perplexity of 3.3",
    mlperf_benchmark="llama31_8b",
    ruleset="6.1.0",
    default_data="topics",
    supports=EVERYTHING,
)
"""MLPerf's small language model pre-training, in the form of its closed rules."""
