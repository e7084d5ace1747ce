"""MLPerf's small language model pre-training, Llama 3.1 8B, in the form of its closed rules, by the modules of GPT."""

from __future__ import annotations

from timedrun.benchmark import EVERYTHING, BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Language modelling: Llama 3.1 8B on C4 to a log perplexity of 3.3",
    mlperf_benchmark="llama31_8b",
    ruleset="6.1.0",
    default_data="topics",
    supports=EVERYTHING,
)
