"""Size of a run: the memory of a rank, and the samples, tokens and time to its target."""

from __future__ import annotations

from collections.abc import Mapping

from mlevents import keys
from mlevents.rounds import Ruleset
from mlevents.rounds.convergence_points import point_at
from timedrun.benchmark import Benchmark
from timedrun.config import RunConfig
from timedrun.errors import TimedrunError
from timedrun.preflight.memory import RankMemory
from timedrun.preflight.plan import Plan


def memory_notes(benchmark: Benchmark, config: RunConfig, ranks: int) -> list[str]:
    """Return the memory of one of `ranks` for each kind of sharding, as messages; none if the benchmark cannot say."""
    estimate = benchmark.hook("memory", "memory")
    if estimate is None:
        return []
    try:
        found: Mapping[str, RankMemory] = estimate(config, ranks)
    except (TimedrunError, ValueError, RuntimeError) as error:
        return [f"the memory of a rank is not known: {error}"]
    chosen = getattr(config, "sharding", "none")
    used = "; the config's choice" if ranks > 1 else "; with one rank nothing is sharded"
    notes = []
    for kind, memory in found.items():
        if kind == "none" or ranks > 1:
            notes.append(f"a rank of {ranks}, sharding {kind}{used if kind == chosen else ''}: {memory}")
    return notes


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
