"""Model the time of a training step, and a time to train, by number of GPUs.

For n GPUs, g of them per node, in N = n / g nodes, and a global batch B:

    seconds    = cold + startup + steps * step + evaluations * evaluation
    steps      = samples(B) / B
    step       = fixed + per_sample * B / n + max(0, all_reduce - OVERLAP * 2/3 * per_sample * B / n)
    all_reduce = 2 (g-1)/g * gradient / inside + 2 (N-1)/N * gradient / g / between
    evaluation = fixed_evaluation + per_evaluation / n

`fixed` and `per_sample` follow from two published sets with different batches per GPU, or `per_sample` from one, with
`fixed` given. A ring all-reduce passes 2 (n-1)/n of the gradient's bytes through each GPU's link; here one ring per
node, then one between nodes for each GPU's part, each over its own network card. Two thirds of a step's computation are
the backward pass, beside which it can run. samples(B) grows as MLCommons' reference convergence points. `inside` and
`between` are REACHED of the nominal bytes per second and direction in the system descriptions of the published sets;
REACHED and OVERLAP are assumptions. Latency of collectives, uneven lengths of sequences and stragglers are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mlevents.rounds import ruleset
from mlevents.rounds.convergence_points import point_at

REACHED: Final = 0.8
OVERLAP: Final = 0.9
BACKWARD: Final = 2 / 3
IMAGES: Final = 1_281_167
PARAMETERS: Final = {"resnet": 25_557_032, "bert": 335_174_458}
NOMINAL: Final = {  # bytes per second, GPU and direction: NVLink inside a node, network between nodes
    "A100": (300e9, 25e9),  # "NVLINK 3.0 600GB/s", one ConnectX-6 of 200 Gb/s per GPU
    "H100": (450e9, 50e9),  # "NVLINK Gen4 900 GB/s", one ConnectX-7 of 400 Gb/s per GPU
    "H200": (450e9, 50e9),
    "GB200": (900e9, 50e9),  # "NVLINK Gen5 1800 GB/s", one ConnectX-7 of 400 Gb/s per GPU
}
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Step and evaluation of one model and kind of GPU on any number of GPUs; seconds, bytes, bytes per second."""

    benchmark: str
    fixed: float
    per_sample: float
    fixed_evaluation: float
    per_evaluation: float
    gradient: float
    inside: float
    between: float
    per_node: int

    def all_reduce(self, gpus: int) -> float:
        """Return the seconds of averaging the gradient over `gpus`."""
        local = min(gpus, self.per_node)
        nodes = math.ceil(gpus / local)
        ring = 2 * (local - 1) / local * self.gradient / self.inside
        return ring + 2 * (nodes - 1) / nodes * self.gradient / local / self.between

    def exposed(self, gpus: int, batch: int) -> float:
        """Return the seconds of the all-reduce that the backward pass does not hide."""
        return max(0.0, self.all_reduce(gpus) - OVERLAP * BACKWARD * self.per_sample * batch / gpus)

    def step(self, gpus: int, batch: int) -> float:
        return self.fixed + self.per_sample * batch / gpus + self.exposed(gpus, batch)

    def evaluation(self, gpus: int) -> float:
        return self.fixed_evaluation + self.per_evaluation / gpus


def gpus_of(row: Row) -> int:
    return int(row["nodes"]) * int(row["accelerators_per_node"])


def fitted(rows: Sequence[Row], fixed: float = 0.0, fixed_evaluation: float = 0.0, gradient_bytes: int = 2) -> Scaling:
    """Fit one published set, with the fixed costs given, or two with different batches per GPU.

    Args:
        gradient_bytes: per parameter. 2 for the closed sets is an assumption.

    Raises:
        ValueError: the two sets have the same batch per GPU.
    """
    kind = next(kind for kind in sorted(NOMINAL, key=len, reverse=True) if kind in rows[0]["accelerator"])
    inside, between = (REACHED * speed for speed in NOMINAL[kind])
    benchmark = rows[0]["benchmark"]
    found = Scaling(
        benchmark=benchmark,
        fixed=fixed,
        per_sample=0.0,
        fixed_evaluation=fixed_evaluation,
        per_evaluation=0.0,
        gradient=PARAMETERS[benchmark] * gradient_bytes,
        inside=inside,
        between=between,
        per_node=rows[0]["accelerators_per_node"],
    )
    shares = [row["global_batch"] / gpus_of(row) for row in rows]
    measured = [row["global_batch"] / row["samples_per_second"] for row in rows]
    if len(set(shares)) < len(shares):
        raise ValueError(f"{rows[0]['name']} and {rows[1]['name']} have the same batch per GPU")
    for _ in range(100):  # the hidden part of the all-reduce depends on the result
        left = [
            seconds - found.exposed(gpus_of(row), row["global_batch"])
            for row, seconds in zip(rows, measured, strict=True)
        ]
        if len(rows) == 2:
            slope = (left[0] - left[1]) / (shares[0] - shares[1])
            found = replace(found, per_sample=slope, fixed=left[0] - slope * shares[0])
        else:
            found = replace(found, per_sample=(left[0] - fixed) / shares[0])
    first, last = rows[0], rows[-1]
    if len(rows) == 2:
        work = (first["evaluation_seconds"] - last["evaluation_seconds"]) / (1 / gpus_of(first) - 1 / gpus_of(last))
        fixed_evaluation = max(0.0, first["evaluation_seconds"] - work / gpus_of(first))
    work = (first["evaluation_seconds"] - fixed_evaluation) * gpus_of(first)
    return replace(found, per_evaluation=work, fixed_evaluation=fixed_evaluation)


def samples_to_target(benchmark: str, batch: int) -> float:
    """Return the samples that MLCommons' reference runs need at a global batch.

    Raises ValueError above the largest batch of the reference.
    """
    rules = ruleset("4.0.0")
    point = point_at(rules, benchmark, batch)
    if point is None:
        raise ValueError(f"no reference convergence point of {benchmark} at a global batch of {batch} or more")
    return point.mean * (IMAGES if rules.benchmarks[benchmark].unit == "epoch" else 1)


def closed_minutes(model: Scaling, gpus: int, batch: int) -> float:
    """Return the time to train in the closed division without start-up and cold caches, evaluated as its rules say:
    every 4 epochs, or every floor(0.05 (230.23 B + 3e6) / 25000) * 25000 sequences."""
    samples = samples_to_target(model.benchmark, batch)
    every = math.floor(0.05 * (230.23 * batch + 3e6) / 25_000) * 25_000
    evaluations = math.ceil(samples / (4 * IMAGES if model.benchmark == "resnet" else every))
    return (samples / batch * model.step(gpus, batch) + evaluations * model.evaluation(gpus)) / 60


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))
