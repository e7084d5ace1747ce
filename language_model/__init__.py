"""BERT masked language modelling, timed to a target accuracy (MLPerf Training v2.1, open division)."""

from __future__ import annotations

from timedrun.benchmark import BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Language modelling: BERT-Large on Wikipedia to 0.720 masked-token accuracy",
    mlperf_benchmark="bert",
    ruleset="2.1.0",
    dataset="wikipedia",
    metric="masked-token accuracy",
    unit="samples",
    default_data="topics",
)

MOVED_CONFIGS = {
    "gpt_shakespeare_nanogpt": "timedrun run gpt nanogpt --data shakespeare",
    "gpt_shakespeare_baseline": "timedrun run gpt baseline --data shakespeare",
    "gpt_shakespeare_modern": "timedrun run gpt modern --data shakespeare",
    "gpt_125m_baseline": "timedrun run gpt baseline --data openwebtext",
    "gpt_125m_methods": "timedrun run gpt methods --data openwebtext",
    "gpt_125m_modern": "timedrun run gpt modern --data openwebtext",
}
"""Commands that run the configs which this benchmark had before GPT became a benchmark of its own."""
