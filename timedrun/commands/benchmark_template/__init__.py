"""Two spirals, classified to a fixed accuracy on the clock. docs/own_benchmark.md of timedrun describes each part."""

from timedrun.runner.benchmark import BenchmarkSpec, benchmark_rules

SPEC = BenchmarkSpec(
    title="Two spirals: a small network to 97 % accuracy",
    own_rules=benchmark_rules(
        "benchmark_template", dataset="spirals", metric="accuracy", target=0.97, direction=">=", unit="epoch", runs=3
    ),
    default_data="spirals",
    # Of micro_batch, precision, compile, methods and ranks, what train.py implements. All else is refused.
    supports=frozenset({"methods"}),
)
