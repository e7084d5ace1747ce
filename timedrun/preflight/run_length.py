"""Length of a run: the samples, tokens and time to its target."""

from __future__ import annotations

from mlevents import keys
from mlevents.rounds import Ruleset
from mlevents.rounds.convergence_points import point_at
from timedrun.benchmark import Benchmark
from timedrun.config import RunConfig
from timedrun.preflight.plan import Plan


def length_notes(benchmark: Benchmark, config: RunConfig, plan: Plan, rules: Ruleset, throughput: float) -> list[str]:
    """Return the samples and tokens of a run and its time on the clock at `throughput` samples per second over all
    ranks, without its evaluations: of the longest run and, on the benchmark's own data, of the reference's runs."""
    spec, info = benchmark.spec, plan.run_info
    unit = 1.0 if spec.unit == "samples" else float(info["train_samples"])
    length = info.get("hyperparameters", {}).get(keys.MAX_SEQUENCE_LENGTH)
    named = {"the longest run": plan.total * unit}
    point = point_at(rules, spec.mlperf_benchmark, config.global_batch)
    if point is not None and config.dataset == spec.dataset:
        named[f"the reference's runs at batch {point.batch_size}, on average"] = point.mean * unit
    notes = []
    for name, samples in reversed(named.items()):
        tokens, rate = "", ""
        if isinstance(length, int):
            tokens, rate = f", {samples * length:,.0f} tokens", f" ({throughput * length:,.0f} tokens per second)"
        hours = samples / throughput / 3600
        notes.append(f"{name}: {samples:,.0f} samples{tokens}; {hours:,.2f} h at {throughput:g} per second{rate}")
    return notes
