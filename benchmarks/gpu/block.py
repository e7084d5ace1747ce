"""Results of steps.py: correctness before times, the environment, a table last, JSON."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from timedrun.benchmark import Benchmark
from timedrun.config import RunConfig, dump
from timedrun.evidence.analysis.step_benchmark import StepRow, measure_steps, show_steps
from timedrun.provenance import source, system
from timedrun.storage.benchmark_folders import ROOT

THREADS: Final = 1
"""CPU threads of a process under --tiny."""
FURTHER: Final = 4.0
"""Largest ratio of distances from fp32, of a timed step over the usual one in bf16. Measured on a CPU: in BERTs of 2 to
24 layers a 16-bit residual stream reaches 1.3 to 2.4, and attention into one neighbouring sequence 6 to 22."""
BF16: Final = 2**-8
"""Relative spacing of bf16's numbers: losses differ less, and distances below it are not compared."""
LARGEST: Final = 0.5
"""Largest distance of any one gradient from fp32: a wrong one is about 1 away."""


class LossGradients(NamedTuple):
    """Loss of one batch, and the gradient of each parameter."""

    loss: float
    gradients: dict[str, Tensor]

    @classmethod
    def of(cls, loss: Tensor, parameters: Mapping[str, Tensor]) -> LossGradients:
        """Compute the gradients of `loss`."""
        loss.backward()  # type: ignore[no-untyped-call]
        return cls(
            float(loss.detach()),
            {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None},
        )

    def distances(self, exact: Mapping[str, Tensor]) -> dict[str, float]:
        """Return by name the norm of each gradient's difference from `exact`, over the norm of that; of the keys'
        biases, whose gradients are zero but for rounding, none."""
        values = {}
        for name, gradient in self.gradients.items():
            if name.endswith("key.bias"):
                continue
            wanted = exact[name].to(gradient.device, torch.float64)
            values[name] = float((gradient.double() - wanted).norm() / wanted.norm())
        return values


class Block:
    """Results of the script: checks, and measured values.

    Raises:
        SystemExit: there is no CUDA device, and `--tiny` was not given.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.tiny, self.out = name, bool(arguments.tiny), Path(arguments.out)
        if not self.tiny and not torch.cuda.is_available():
            raise SystemExit(f"{name}: no CUDA device; nothing was measured. --tiny runs the script on a CPU.")
        self.out.mkdir(parents=True, exist_ok=True)
        self.device = torch.device("cpu" if self.tiny else "cuda")
        self.threads = THREADS if self.tiny else 0
        if self.tiny:
            torch.set_num_threads(THREADS)
        self.began = time.perf_counter()
        self.values: dict[str, Any] = {
            "command": ["python", "-m", "benchmarks.gpu.steps", *(Path(word).name for word in sys.argv[1:])],
            "tiny": self.tiny,
            "source": source.provenance(ROOT),
            "system": system.describe("", "", ranks=1, device=self.device.type),
            "environment": system.environment().splitlines(),
            "python": platform.python_version(),
            "cuda": torch.version.cuda,
            "checks": {},
        }

    def check(self, name: str, passed: bool, value: object) -> None:
        """Record a check of correctness; end the script if it failed, with what was found before."""
        self.values["checks"][name] = {"passed": passed, "found": value}
        print(f"{'passed' if passed else 'FAILED'}: {name}: {value}", flush=True)
        if not passed:
            self.write()
            raise SystemExit(f"{self.name}: {name}: the check failed, so nothing after it was measured")

    def compare(
        self,
        name: str,
        timed: LossGradients,
        exact: LossGradients,
        usual: Mapping[str, float],
        *,
        attention: bool = False,
        further: float = FURTHER,
        largest: float = LARGEST,
    ) -> None:
        """Check loss and gradients of a step as it will be timed, in bf16, against `exact` ones in fp32.

        Args:
            exact: with gradients of the names and shapes of `timed`.
            usual: distances of an independent step in bf16 from fp32: rounding alone. The median distance of `timed`
                may be `further` times theirs.
            attention: compare the median of the gradients that a wrong mask changes most, too.
            largest: distance that any gradient may have.
        """
        distances = timed.distances(exact.gradients)
        distances_of = {
            "loss apart": abs(timed.loss - exact.loss) / abs(exact.loss),
            "largest": max(distances.values()),
        }
        passed = distances_of["loss apart"] <= BF16 and distances_of["largest"] <= largest
        compared: dict[str, Callable[[str], bool]] = {"median": lambda _: True}
        if attention:
            names = ("query.weight", "key.weight", "value.weight", "qkv.weight")  # the first to show a wrong mask
            compared["median of attention's"] = lambda name: name.endswith(names)
        for kind, chosen in compared.items():
            own, theirs = (
                statistics.median(value for name, value in of.items() if chosen(name)) for of in (distances, usual)
            )
            distances_of |= {kind: own, f"{kind}, usual": theirs}
            passed = passed and own <= further * max(theirs, BF16)
        self.check(name, passed, distances_of)

    def measure(
        self, name: str, benchmark: Benchmark, configs: Mapping[str, RunConfig], **options: Any
    ) -> dict[str, StepRow]:
        """Measure steps of `configs` in turns (`measure_steps`), print their table and return the rows by label.

        Raises:
            SystemExit: a config of a tiny script failed. On a GPU it is recorded, and the others go on.
        """
        print(f"{name}: steps of {len(configs)} configs in turns", flush=True)
        rows, failed = measure_steps(benchmark, list(configs.items()), threads=self.threads, **options)
        dumped = {label: dump(config) for label, config in configs.items()}
        measured = {"rows": [row.as_values(rows[0]) for row in rows]} if rows else {}
        self.values[name] = {"configs": dumped, **measured, "failed": failed}
        self.write()
        if failed and (self.tiny or not rows):
            raise SystemExit(f"{self.name}: {name}: {failed}")
        print(f"\n{name}")
        show_steps(rows, failed)
        print(f"\n{self.name}: {self.values['seconds']:.0f} s, all values: {self.out / self.name}.json")
        return {row.label: row for row in rows}

    def write(self) -> None:
        """Write all values so far."""
        self.values["seconds"] = time.perf_counter() - self.began
        (self.out / f"{self.name}.json").write_text(json.dumps(self.values, indent=1) + "\n")
