"""BERT masked language modelling, timed to a target accuracy (MLPerf Training v2.1, open division)."""

from timedrun.runner.benchmark import EVERYTHING, BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Language modelling: BERT-Large on Wikipedia to 0.720 masked-token accuracy",
    mlperf_benchmark="bert",
    ruleset="2.1.0",
    default_data="topics",
    supports=EVERYTHING,
)
