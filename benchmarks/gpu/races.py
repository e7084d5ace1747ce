"""Timed races on a GPU, each held to both checkers: the demonstrations, CIFAR-10, BERT and GPT on real text.

Usage: python -m benchmarks.gpu.races RACE --out results/gpu/DATE-GPU [--data-folder FOLDER] [--runs N] [--tiny]
           [OVERRIDE ...]

RACE: images or topics, the demonstrations, which need no data; cifar10 to 94 %, with CIFAR-10's binary batches; text, a
small BERT on a store of `timedrun prepare language_model baseline --data wikipedia_small`; gpt, on a store of `timedrun
prepare gpt baseline --data shakespeare`; gpt_text, on token shards of `timedrun prepare fineweb small_baseline` from
the text of the small BERT. Overrides are those of `timedrun race`, such as `--b.optimizer.peak-lr 0.2`. Every log has
to pass the strict checks and MLCommons' checker before a ratio is shown. The time with warm-up is from init_start on,
with building and compiling the model, without the start of Python. J is the energy of the GPU from run_start to
run_stop, by NVML's counter (extra `gpu`).

A race of N runs takes the time of its runs, plus 10 to 20 s each for start and imports: choose --runs for ten minutes.
Needs all packages of pyproject.toml's `dependencies`, mlperf-logging for the official checker among them, scikit-learn
for images and transformers for topics and text; carry those that a machine without a network lacks (see steps).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.block import THREADS, Block, parser
from mlevents import keys
from mlevents.record import read

BF16 = ("--precision", "bf16")


@dataclass(frozen=True)
class Race:
    """A race: the benchmark, its configs, of which the last is compared with the others, and what differs on a GPU."""

    benchmark: str
    configs: tuple[str, ...]
    data: str
    runs: int
    overrides: tuple[str, ...] = BF16
    needs_data: bool = False


RACES = {
    "images": Race("image_classification", ("baseline", "methods"), "digits", 5),
    "topics": Race("language_model", ("baseline", "baseline_sdpa", "methods"), "topics_mixed", 5),
    "cifar10": Race("image_classification", ("94_baseline", "94_methods"), "cifar10", 10, needs_data=True),
    "text": Race("language_model", ("baseline", "methods_gpu"), "wikipedia_small", 5, needs_data=True),
    "gpt": Race("gpt", ("baseline", "modern"), "shakespeare", 5, needs_data=True),
    "gpt_text": Race("fineweb", ("small_baseline", "small_methods"), "fineweb", 5, needs_data=True),
}
SMOKE = Race("image_classification", ("smoke", "smoke-ema"), "synthetic", 1, ())
"""Every race under --tiny."""


def command_of(race: Race, folder: Path, data_folder: Path | None, runs: int, overrides: Sequence[str]) -> list[str]:
    """Return the command of `race` with its results in `folder`."""
    command = [sys.executable, "-m", "timedrun", "race", race.benchmark, *race.configs, "--data", race.data]
    command += ["--runs", str(runs), "--results", str(folder)]
    return command + (["--data-folder", str(data_folder)] if data_folder else []) + list(overrides)


def of_logs(folder: Path, race: Mapping[str, Any]) -> dict[str, list[dict[str, float | None]]]:
    """Return by label what the logs of the finished runs say, by their numbers: the seconds from init_start to
    init_stop, in which the model is built and compiled and steps are taken on synthetic data, and the joules that the
    GPU used in the timed region, None if NVML did not say."""
    logs: dict[str, list[dict[str, float | None]]] = {label: [] for label in race["sides"].values()}
    for turn in sorted(race["turns"], key=lambda turn: int(turn["number"])):
        if turn["status"] == "finished":
            log = read(folder / turn["side"] / f"result_{turn['number']}.txt")
            joules = [event.value.get("gpu_joules") for event in log.all(keys.MACHINE_LOAD)]
            used = None if None in joules or not joules else sum(joules)
            logs[race["sides"][turn["side"]]].append(
                {"warm_up_seconds": 60 * (log.init_minutes or 0.0), "joules": used}
            )
    return logs


def mean(values: Sequence[float], form: str) -> str:
    """Return the mean of `values`, "-" without any."""
    return form.format(statistics.fmean(values)) if values else "-"


def interval(ratio: Mapping[str, Any]) -> str:
    """Return the 95 % interval of a ratio, "-" if there are too few pairs for one."""
    return "-" if ratio["low"] is None else f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("race", choices=RACES)
    options.add_argument("--data-folder", type=Path)
    options.add_argument("--runs", type=int, help="runs of each config (default: 10 of cifar10, 5 of the others)")
    arguments, overrides = options.parse_known_args()
    race = SMOKE if arguments.tiny else RACES[arguments.race]
    block = Block(f"race_{arguments.race}", arguments)
    folder = block.out / f"race_{arguments.race}"
    if folder.exists():
        raise SystemExit(f"{folder} exists; nothing was run. Continue it with `timedrun race --resume {folder}`.")
    overrides = ["--device", block.device.type, *race.overrides, *overrides]
    if race.needs_data and arguments.data_folder is None:
        options.error(f"{arguments.race} needs --data-folder")
    if block.tiny:
        overrides += ["--threads", str(THREADS)]
    command = command_of(race, folder, arguments.data_folder, arguments.runs or race.runs, overrides)
    began = time.perf_counter()
    code = subprocess.run(command).returncode
    values = json.loads((folder / "race.json").read_text()) if (folder / "race.json").is_file() else {}
    logs = [verdict for verdict in values.get("verdicts", []) if verdict["kind"] == "log"]
    block.values |= {"race": values, "race_seconds": time.perf_counter() - began, "overrides": overrides}
    problems = values.get("problems", [])
    block.check(
        "the race ended", code == 0 and bool(logs), {"exit code": code, "logs": len(logs), "problems": problems}
    )
    for kind in ("strict", "official"):
        failed = [Path(log["path"]).relative_to(folder).as_posix() for log in logs if log[kind] != "pass"]
        if kind == "strict" or race.benchmark not in ("gpt", "fineweb"):  # MLCommons' tools do not know them
            block.check(f"{kind} checks pass", not failed, {"logs": len(logs), "failed": failed})
    block.values["logs"] = logged = of_logs(folder, values["race"])
    rows = []
    for label, times in values["runs_seconds"].items():
        reached = [(run, log) for run, log in zip(times, logged[label], strict=True) if run is not None]
        whole = [minutes + (log["warm_up_seconds"] or 0.0) for minutes, log in reached]
        energy = [log["joules"] for _, log in reached]
        known = [joules for joules in energy if joules is not None]
        rows.append(
            [
                label,
                f"{len(reached)} of {len(times)}",
                mean([minutes for minutes, _ in reached], "{:.2f}"),
                mean(whole, "{:.2f}"),
                mean(known if len(known) == len(energy) else [], "{:,.0f}"),
                " ".join(f"{minutes:.2f}" for minutes, _ in reached),
            ]
        )
    header = ["config", "runs at the target", "mean", "with warm-up", "J", "each, without warm-up"]
    block.show("seconds to the target", header, rows)
    ratios = [
        [name, f"{value['ratio']:.2f}", interval(value), value["verdict"]] for name, value in values["ratios"].items()
    ]
    block.show("ratios of times", ["ratio", "mean", "95 %", "verdict"], ratios)
    block.finish()


if __name__ == "__main__":
    main()
