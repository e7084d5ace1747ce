"""BERT masked language modelling, timed to a target accuracy (MLPerf Training v2.1, open division)."""

from __future__ import annotations

from timedrun.benchmark import EVERYTHING, BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Language modelling: BERT-Large on Wikipedia to 0.720 masked-token accuracy",
    mlperf_benchmark="bert",
    ruleset="2.1.0",
    default_data="topics",
    supports=EVERYTHING,
)

MOVED_CONFIGS = {
    "gpt_125m_baseline": "gpt baseline --data openwebtext",
    "gpt_125m_methods": "gpt methods --data openwebtext",
    "gpt_125m_modern": "gpt modern --data openwebtext",
    "gpt_shakespeare_nanogpt": "gpt nanogpt --data shakespeare",
    "gpt_shakespeare_baseline": "gpt baseline --data shakespeare",
    "gpt_shakespeare_modern": "gpt modern --data shakespeare",
}
"""Former configs of this benchmark, with the arguments of `timedrun run` that replace their names."""
