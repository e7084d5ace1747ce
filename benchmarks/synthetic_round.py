"""Write a synthetic round of MLPerf Training v2.1: closed and open ResNet and BERT results of several submitters.

A log holds 150-300 KB, over half of it records (weights, settings, evaluations, statistics), the rest a job's output.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlevents.package_checker.system_description import KEYS

RULESET: Final = "2.1.0"
RUNS: Final = {"resnet": 5, "bert": 10}
BATCH: Final = {"resnet": 3264, "bert": 448}
TARGET: Final = {"resnet": 0.759, "bert": 0.72}
# Epochs and samples at which runs converge, all slower than the reference's mean at this batch size (rcps_*.json), so
# that MLCommons scales no score; see `Faults.scaled`.
CONVERGED: Final = {"resnet": (39, 39, 43), "bert": (2_550_000, 2_700_000, 2_850_000)}
INTERVAL: Final = {"resnet": 4, "bert": 150_000}
FIRST: Final = {"resnet": 3, "bert": 150_000}
STEPS_BETWEEN: Final = 40  # lines of a job's own output between two evaluations
START_MS: Final = 1_665_000_000_000
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "resnet": {
        "opt_name": "lars",
        "lars_opt_base_learning_rate": 10.5,
        "lars_opt_end_learning_rate": 0.0001,
        "lars_opt_learning_rate_decay_poly_power": 2,
        "lars_opt_learning_rate_decay_steps": 14112,
        "lars_epsilon": 0.0,
        "lars_opt_learning_rate_warmup_epochs": 2,
        "lars_opt_momentum": 0.9,
        "lars_opt_weight_decay": 5e-05,
        "train_samples": 1281167,
        "eval_samples": 50000,
    },
    "bert": {
        "opt_name": "lamb",
        "opt_base_learning_rate": 0.00035,
        "opt_lamb_epsilon": 1e-06,
        "opt_learning_rate_training_steps": 7100,
        "opt_learning_rate_warmup_steps": 0,
        "num_warmup_steps": 0,
        "start_warmup_step": 0,
        "opt_lamb_beta_1": 0.9,
        "opt_lamb_beta_2": 0.999,
        "opt_lamb_weight_decay_rate": 0.01,
        "train_samples": 156811560,
        "eval_samples": 10000,
    },
}


@dataclass(frozen=True)
class Faults:
    """Faults of a set: runs aborted below the target, truncated or missing; a score to be scaled."""

    aborted: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    scaled: bool = False


# By submitter and benchmark; one run may fail in a set, two may not.
FAULTS: Final = {
    (1, "resnet"): Faults(aborted=(2,)),
    (2, "bert"): Faults(cut=(3, 7)),
    (3, "resnet"): Faults(scaled=True),
    (4, "bert"): Faults(aborted=(0,)),  # open: MLCommons' rule files look at no target and no status there
    (6, "bert"): Faults(missing=(9,)),
}


def tensors(benchmark: str) -> list[str]:
    """Return the weights whose initialization a closed log must name, from MLCommons' rule file."""
    spec = importlib.util.find_spec("mlperf_logging.compliance_checker")
    assert spec is not None and spec.origin is not None, "mlperf_logging is not installed"
    rules = Path(spec.origin).with_name(f"training_{RULESET}") / f"closed_{benchmark}.yaml"
    return re.findall(r'^ +"([\w/]+)",$', rules.read_text(), flags=re.MULTILINE)


class Log:
    def __init__(self, benchmark: str, start_ms: int, seed: int) -> None:
        self.lines: list[str] = []
        self.benchmark = benchmark
        self.clock = start_ms
        self.random = random.Random(seed)

    def add(
        self, key: str, value: object = None, kind: str = "POINT_IN_TIME", wait: int = 1, **metadata: object
    ) -> None:
        """Add one record, `wait` milliseconds after the previous one."""
        self.clock += wait
        record = {
            "namespace": "",
            "time_ms": self.clock,
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {"file": f"/workspace/{self.benchmark}/run_pretraining.py", "lineno": 1004, **metadata},
        }
        self.lines.append(f":::MLLOG {json.dumps(record)}")

    def output(self, lines: int, wait: int) -> None:
        """Add the output of a job over `wait` milliseconds."""
        for _ in range(lines):
            step, loss = self.random.randrange(10**6), self.random.random()
            self.lines.append(
                f"[rank0] step {step:>7d} | loss {loss:.6f} | learning rate {loss / 1e3:.8e} | norm {loss * 7:.5f} | "
                f"{3000 + 100 * loss:.2f} sequences/s | memory 71.{step % 100:02d} GiB | data wait {loss / 90:.5f} s"
            )
        self.clock += wait


def log_lines(benchmark: str, division: str, organization: str, system: str, run: int, faults: Faults) -> list[str]:
    """Return the lines of one result file; seed and times depend on the names alone."""
    seed = random.Random(f"{organization} {system} {benchmark} {run}").randrange(2**31)
    log = Log(benchmark, START_MS + seed, seed)
    log.add("cache_clear", True)
    log.add("init_start", kind="INTERVAL_START")
    for key, value in (
        ("submission_benchmark", benchmark),
        ("submission_division", division),
        ("submission_org", organization),
        ("submission_platform", system),
        ("submission_status", "onprem"),
        ("submission_poc_name", "Nobody"),
        ("seed", seed),
        ("global_batch_size", BATCH[benchmark]),
        ("gradient_accumulation_steps", 1),
        *SETTINGS[benchmark].items(),
    ):
        log.add(key, value)
    log.output(60, 20_000)
    for tensor in tensors(benchmark):
        log.add("weights_initialization", wait=0, tensor=tensor)
    log.output(60, 100_000)
    log.add("init_stop", kind="INTERVAL_END")
    log.add("run_start", kind="INTERVAL_START")
    _train(log, run, faults)
    if run not in faults.cut:
        log.add("run_stop", kind="INTERVAL_END", status="aborted" if run in faults.aborted else "success")
    log.output(20, 1000)
    return log.lines


def _train(log: Log, run: int, faults: Faults) -> None:
    """Add blocks and evaluations up to the one that reaches the target, or would have."""
    benchmark = log.benchmark
    last = 35 if faults.scaled else CONVERGED[benchmark][run % 3]
    done, until = 0, FIRST[benchmark]
    while True:
        trained = until - done
        counts = {"first_epoch_num": done + 1, "epoch_count": trained} if benchmark == "resnet" else {}
        first = counts or {"first_epoch_num": done, "epoch_count": trained}
        log.add("block_start", kind="INTERVAL_START", **first)
        pace = 40_000 if benchmark == "resnet" else 0.4
        log.output(STEPS_BETWEEN, int(trained * pace) + log.random.randrange(999))
        for part in range(10):
            log.add(
                "tracked_stats", {"throughput": 3000 + part, "loss": log.random.random()}, step=until, epoch_num=until
            )
        log.add("eval_start", kind="INTERVAL_START", epoch_num=until)
        reached = until >= last and run not in faults.aborted
        short = 0.0 if reached else 0.3 * (1.05 - until / last)
        noise = log.random.uniform(0, 0.001)
        log.add("eval_accuracy", round(TARGET[benchmark] - short + noise, 6), wait=2500, epoch_num=until)
        log.add("eval_stop", kind="INTERVAL_END", epoch_num=until)
        log.add("block_stop", kind="INTERVAL_END", first_epoch_num=first["first_epoch_num"])
        if until >= last:
            return
        done, until = until, until + INTERVAL[benchmark]


def system_description(organization: str, system: str, division: str) -> dict[str, Any]:
    """Return a description with every key that MLCommons' checker of system descriptions requires."""
    status = "Available on-premise"
    known = {"submitter": organization, "division": division, "status": status, "system_name": system}
    return dict.fromkeys(KEYS, "1") | known | {"cooling": "air", "other_software_stack": {"driver": "520.61"}}


def write_round(folder: Path, megabytes: float) -> Iterator[Path]:
    """Write submission folders into `folder` until they hold `megabytes` and yield each; every fourth is open."""
    written, number = 0, 0
    while written < megabytes * 1e6:
        organization, division = f"Submitter{number:02d}", "open" if number % 4 == 0 else "closed"
        for count in range(1 + (number % 3 == 0)):
            system = f"{organization}_{8 << count}x80GB"
            description = folder / organization / "systems" / f"{system}.json"
            description.parent.mkdir(parents=True, exist_ok=True)
            description.write_text(json.dumps(system_description(organization, system, division), indent=2))
            for benchmark, runs in RUNS.items():
                faults = FAULTS.get((number, benchmark), Faults())
                results = folder / organization / "results" / system / benchmark
                results.mkdir(parents=True)
                for run in range(runs):
                    if run in faults.missing:
                        continue
                    lines = log_lines(benchmark, division, organization, system, run, faults)
                    written += (results / f"result_{run}.txt").write_text("\n".join(lines) + "\n")
        yield folder / organization
        number += 1
