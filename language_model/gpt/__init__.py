"""GPT-125M causal language modelling, timed to a target validation loss."""

from __future__ import annotations

from timedrun.benchmark import EVERYTHING, BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Language modelling: GPT-125M on OpenWebText to a validation loss of 3.1826 nats per token",
    mlperf_benchmark="gpt_125m",
    ruleset="beyond_mlperf",
    default_data="shakespeare",
    supports=EVERYTHING,
)
