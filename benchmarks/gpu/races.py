"""Timed races on a GPU, each held to both checkers: the demonstrations, CIFAR-10, BERT and GPT on real text.

Usage: python -m benchmarks.gpu.races RACE --out results/gpu/DATE-GPU [--data-folder FOLDER] [--runs N] [--tiny]
           [OVERRIDE ...]

RACE: images or topics, the demonstrations, which need no data; cifar10 to 94 %, with CIFAR-10's binary batches; text, a
small BERT on a store of `timedrun prepare language_model baseline --data wikipedia_small`; gpt, on a store of
`timedrun prepare gpt baseline --data shakespeare`. Overrides are those of `timedrun race`, such as
`--b.optimizer.peak-lr 0.2`. Every log has to pass the strict checks and MLCommons' checker before a ratio is shown.

A race of N runs takes the time of its runs, plus 10 to 20 s each for start and imports: choose --runs for ten minutes.
Needs all packages of pyproject.toml's `dependencies`, mlperf-logging for the official checker among them, scikit-learn
for images and transformers for topics and text; carry those that a machine without a network lacks (see bert_ladder).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.block import THREADS, Block, parser
from language_model.gpt.tokens import prepare_tokens


@dataclass(frozen=True)
class Race:
    """A race: the benchmark, its configs, of which the last is compared with the others, and what differs on a GPU."""

    benchmark: str
    configs: tuple[str, ...]
    data: str
    runs: int
    overrides: tuple[str, ...] = ("--precision", "bf16")
    needs_data: bool = False


RACES = {
    "images": Race("image_classification", ("baseline", "methods"), "digits", 5),
    "topics": Race("language_model", ("baseline", "baseline_sdpa", "methods"), "topics_mixed", 5),
    "cifar10": Race("image_classification", ("94_baseline", "94_methods"), "cifar10", 10, needs_data=True),
    "text": Race("language_model", ("baseline", "methods"), "wikipedia_small", 5, needs_data=True),
    "gpt": Race("gpt", ("baseline", "modern"), "shakespeare", 5, needs_data=True),
}
SMOKE = Race("image_classification", ("smoke", "smoke-ema"), "synthetic", 1, ())
FIRST_STEPS = ("--evaluation.first", "320", "--evaluation.every", "320", "--evaluation.target")
"""Of a tiny run of text: evaluated after 320 samples, and ended by a target that any model reaches."""
TOPICS = Race("language_model", ("baseline", "methods"), "topics", 1, (*FIRST_STEPS, "1e-6"))
GPT = Race("gpt", ("baseline", "modern"), "shakespeare", 1, (*FIRST_STEPS, "99"), needs_data=True)
TINY = {"images": SMOKE, "topics": TOPICS, "cifar10": SMOKE, "text": TOPICS, "gpt": GPT}


def tiny_tokens(folder: Path) -> tuple[str, ...]:
    """Make a token store of this file's text in `folder`; return the override that fits a model to it."""
    manifest = prepare_tokens([Path(__file__)], folder)
    return ("--model.vocabulary", str(manifest.vocabulary))


def command_of(race: Race, folder: Path, data_folder: Path | None, runs: int, overrides: Sequence[str]) -> list[str]:
    """Return the command of `race` with its results in `folder`."""
    command = [sys.executable, "-m", "timedrun", "race", race.benchmark, *race.configs, "--data", race.data]
    command += ["--runs", str(runs), "--results", str(folder)]
    return command + (["--data-folder", str(data_folder)] if data_folder else []) + list(overrides)


def interval(ratio: Mapping[str, Any]) -> str:
    """Return the 95 % interval of a ratio, "-" if there are too few pairs for one."""
    return "-" if ratio["low"] is None else f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("race", choices=RACES)
    options.add_argument("--data-folder", type=Path)
    options.add_argument("--runs", type=int, help="runs of each config (default: 10 of cifar10, 5 of the others)")
    arguments, overrides = options.parse_known_args()
    race = (TINY if arguments.tiny else RACES)[arguments.race]
    block = Block(f"race_{arguments.race}", arguments)
    folder = block.out / f"race_{arguments.race}"
    if folder.exists():
        raise SystemExit(f"{folder} exists; nothing was run. Continue it with `timedrun race --resume {folder}`.")
    data_folder = arguments.data_folder
    overrides = ["--device", block.device.type, *race.overrides, *overrides]
    if block.tiny and race.needs_data:
        data_folder = block.out / f"data_{arguments.race}"
        overrides += tiny_tokens(data_folder)
    if race.needs_data and data_folder is None:
        options.error(f"{arguments.race} needs --data-folder")
    if block.tiny:
        overrides += ["--threads", str(THREADS)]
    command = command_of(race, folder, data_folder, arguments.runs or race.runs, overrides)
    began = time.perf_counter()
    code = subprocess.run(command).returncode
    found = json.loads((folder / "race.json").read_text()) if (folder / "race.json").is_file() else {}
    logs = [one for one in found.get("verdicts", []) if one["kind"] == "log"]
    block.values |= {"race": found, "race_seconds": time.perf_counter() - began, "overrides": overrides}
    problems = found.get("problems", [])
    block.check(
        "the race ended", code == 0 and bool(logs), {"exit code": code, "logs": len(logs), "problems": problems}
    )
    for kind in ("strict", "official"):
        failed = [Path(one["path"]).relative_to(folder).as_posix() for one in logs if one[kind] != "pass"]
        if kind == "strict" or race.benchmark != "gpt":  # MLCommons' tools do not know GPT
            block.check(f"{kind} checks pass", not failed, {"logs": len(logs), "failed": failed})
    rows = [
        [label, f"{len(times)}", " ".join(f"{one:.2f}" for one in times)]
        for label, times in found["runs_seconds"].items()
    ]
    block.show("seconds to the target", ["config", "runs", "seconds"], rows)
    ratios = [[name, f"{one['ratio']:.2f}", interval(one), one["verdict"]] for name, one in found["ratios"].items()]
    block.show("ratios of times", ["ratio", "mean", "95 %", "verdict"], ratios)
    block.finish()


if __name__ == "__main__":
    main()
