"""GPT-2 124M on FineWeb: steps of fineweb_baseline and fineweb_methods, and a projection of their time to 3.28.

Usage: python -m benchmarks.gpu.fineweb steps|curve --data-folder SHARDS --out results/gpu/DATE-GPU [--tiny]
           [--configs baseline methods] [--tokens 40e6 60e6 100e6 160e6] [--runs 1] [OVERRIDE ...]

steps: tokens per second, MFU and memory. First, loss and gradients of each config with few of its layers, as timed (in
bf16, compiled, with block masks), are compared with those in fp32 under dense masks on the CPU.

curve: each config trains with its whole schedule compressed to each of --tokens (`timedrun sweep`), and the last losses
are fitted by loss = floor + factor * tokens ** -exponent, with each of two published exponents. Where the fit is the
target, 3.28 nats, is a projection: from 1 % of the tokens, without the time of evaluations, and of FineWeb only if
SHARDS are FineWeb's; else name the text, as in `--dataset wikipedia`, since runs on FineWeb are held to its rules. A
sweep that a limit of time ended is continued by the same command.

Overrides are those of `timedrun run fineweb`, such as `--data.eval-tokens 500000` for a short validation split. The
config `methods+float8(layers=head)` has the 8-bit head of the speed runs. Needs all packages of pyproject.toml's
`dependencies`; carry those that a machine without a network lacks (see bert_ladder).
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.gpu.block import THREADS, Block, LossGradients, attention_weights, parser
from judging.ground.token_shard import write_shard
from judging.pages import table
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import facts
from language_model.gpt.model import Decoder, NextTokenLoss, build_model
from mlevents import student_t
from timedrun.analysis.profiled_run import StepPlan
from timedrun.benchmark import find
from timedrun.config_choice import config_of
from timedrun.methods import stack
from timedrun.race.race_file import RACE_FILE
from timedrun.race.sweep_curves import curves_at
from timedrun.training.precision import Precision, set_backends

DATA = "fineweb"
EXPONENTS = {"Hoffmann et al. 2022": 0.28, "Besiroglu et al. 2024": 0.37}
"""Published exponents of the loss in the number of tokens: Chinchilla's third approach (arXiv 2203.15556, equation 10)
and its replication (arXiv 2404.10102)."""
MOST_EPOCHS = 4
"""Passes over the same text that are about as good as new text (Muennighoff et al. 2023, arXiv 2305.16264)."""
FEWEST = 3
"""Runs from which a fit of two parameters has an interval."""
TINY = (
    *(
        "--dataset",
        "tiny",
        "--device",
        "cpu",
        "--no-compile",
        "--warm-up-steps",
        "1",
        "--global-batch",
        "4",
        "--micro-batch",
        "2",
    ),
    *("--model.layers", "2", "--model.hidden", "32", "--model.heads", "2", "--model.context", "128"),
    *("--schedule.steps", "40", "--data.eval-tokens", "512"),
)
TINY_OF = {
    "baseline": ("--schedule.warmup-steps", "2"),
    "methods": (
        *("--model.attention-window", "128", "--window-warmup-steps", "40", "--model.value-embeddings", "1"),
        *("--schedule.cooldown-steps", "16"),
    ),
}
TINY_LAUNCH = ("--threads", str(THREADS), "--emulated-precision")
TINY_TOKENS = (2048, 4096, 8192)


class Projection(NamedTuple):
    """Tokens at which a fitted curve reaches a loss, with Fieller's 95 % interval; infinite: never."""

    floor: float
    factor: float
    tokens: float
    low: float
    high: float


def project(tokens: Sequence[float], losses: Sequence[float], target: float, exponent: float) -> Projection:
    """Fit losses = floor + factor * tokens ** -exponent by least squares to three runs or more, and project `target`.

    The interval holds every number of tokens at which Student's 95 % interval of the fitted line holds the target
    (Fieller 1954).
    """
    x, y = np.asarray(tokens, np.float64) ** -exponent, np.asarray(losses, np.float64)
    count, middle, mean = len(x), float(x.mean()), float(y.mean())
    spread = float(((x - middle) ** 2).sum())
    factor = float(((x - middle) * (y - mean)).sum()) / spread
    residuals = y - mean - factor * (x - middle)
    degrees = count - 2
    error = student_t.quantile(degrees) ** 2 * float((residuals**2).sum()) / degrees

    def at(place: float) -> float:
        return place ** (-1 / exponent) if place > 0 else math.inf

    above = mean - target
    best = at(middle - above / factor) if factor > 0 else math.inf
    # (above + factor * u)² <= error * (1 / count + u² / spread), for u = x - middle
    square, half, rest = factor**2 - error / spread, factor * above, above**2 - error / count
    if square <= 0 or factor <= 0:
        return Projection(mean - factor * middle, factor, best, 0.0, math.inf)
    root = math.sqrt(max(0.0, half**2 - square * rest))
    low, high = (at(middle + (-half + sign * root) / square) for sign in (1, -1))
    return Projection(mean - factor * middle, factor, best, low, high)


def write_tiny_shards(folder: Path) -> int:
    """Write this file's bytes as shards of both splits, each paragraph a document; return the vocabulary's size."""
    end_of_text, tokens = 256, list[int]()
    for paragraph in Path(__file__).read_bytes().split(b"\n\n"):
        tokens += [end_of_text, *paragraph]
    folder.mkdir(parents=True)
    for name in ("tiny_train_000001.bin", "tiny_val_000000.bin"):
        write_shard(folder / name, np.array(tokens, np.uint16), end_of_text + 1)
    return end_of_text + 1


def compare_with_dense_masks(block: Block, name: str, config: GptRunConfig) -> None:
    """Check loss and gradients of `config`'s parts as timed against those in fp32 on the CPU, of two sequences that
    hold several documents, in the middle of the window's warm-up."""
    # Few layers, for the CPU; with zero projections no gradient would reach the attention.
    layers = max(2, 2 * config.model.value_embeddings)
    model = replace(config.model, layers=layers, zero_projections=False)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocabulary - 1, (2, model.context + 1), generator=generator)
    tokens[torch.rand(tokens.shape, generator=generator) < 8 / model.context] = model.vocabulary - 1
    window = config.window(config.schedule.steps // 2)

    def computed(device: torch.device, precision: Literal["fp32", "bf16", "fp16"], compiled: bool) -> LossGradients:
        net: nn.Module = build_model(model, 1)
        if precision != "fp32":
            net = stack(*config.methods).model(net)
        net.to(device)
        if isinstance(net, Decoder) and net.window is not None:
            net.window.fill_(window)
        summed = NextTokenLoss(net)
        if compiled:
            summed.compile()
        inputs, targets = (part.contiguous().to(device) for part in (tokens[:, :-1], tokens[:, 1:]))
        with Precision(precision, device).autocast():
            loss: Tensor = summed(inputs, targets) / targets.numel()
        return LossGradients.of(loss, dict(net.named_parameters()))

    cpu = torch.device("cpu")
    exact = computed(cpu, "fp32", compiled=False)
    usual = computed(cpu, "bf16", compiled=False).distances(exact.gradients)
    set_backends(tf32=config.tf32, cudnn_benchmark=config.cudnn_benchmark)
    timed = computed(block.device, config.precision, config.compile)
    block.compare(f"{name}: bf16 as fp32 under dense masks", timed, exact, usual, most=attention_weights)
    if block.device.type == "cuda":
        torch.cuda.empty_cache()


def measure(block: Block, configs: dict[str, GptRunConfig], data_folder: Path) -> None:
    """Compare, then time, the steps of all configs in turns."""
    for name, config in configs.items():
        compare_with_dense_masks(block, name, config)
    plan = StepPlan(positions=(0.1, 0.5, 0.9), chunks=3, chunk=3, skip=3, evaluate=False)
    if block.tiny:
        plan = StepPlan(positions=(0.5,), chunks=2, chunk=1, skip=2, evaluate=False)
    block.measure("steps", find("fineweb"), configs, plan=plan, data_folder=data_folder, counted=1)


def sweep(
    block: Block, name: str, config: GptRunConfig, tokens: Sequence[float], runs: int, words: Sequence[str]
) -> Path:
    """Train `config` to the end of its schedule, compressed to each of `tokens`; return the folder of the sweep."""
    folder = block.out / f"fineweb_{name}"
    whole = config.schedule.steps * config.global_batch * config.model.context
    command = [sys.executable, "-m", "timedrun", "sweep", "fineweb"]
    if (folder / RACE_FILE).is_file():
        command += ["--resume", str(folder)]
    else:
        command += [name, "--data", DATA, "--results", str(folder), "--runs", str(runs)]
        command += ["--ratios", *(f"{one / whole:.8g}" for one in tokens), *words]
    code = subprocess.run(command).returncode
    block.check(f"{name}: the sweep ended", code == 0, {"exit code": code})
    return folder


def curve(name: str, config: GptRunConfig, folder: Path) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the values and the rows of the table of one config: the runs of the sweep in `folder`, and projections."""
    (found,) = curves_at([folder])
    runs = [run for _, seeds in sorted(found.budgets.items()) for run in seeds.values()]
    tokens = [float((run.steps or 0) * config.global_batch * config.model.context) for run in runs]
    losses = [run.final_quality or math.nan for run in runs]
    seconds = [60 * (run.minutes or math.nan) * (1 - (run.evaluation_share or 0.0)) for run in runs]
    rates = [one / second for one, second in zip(tokens, seconds, strict=True) if one == max(tokens)]
    rate, target = statistics.median(rates), config.evaluation.target
    projections, rows = {}, []
    for source, exponent in EXPONENTS.items():
        found_at = project(tokens, losses, target, exponent)
        ends = (found_at.tokens, found_at.low, found_at.high)
        hours = [one / rate / 3600 for one in ends]
        projections[source] = {
            "exponent": exponent,
            "floor": found_at.floor,
            "factor": found_at.factor,
            **dict(zip(("tokens", "low_tokens", "high_tokens"), map(finite, ends), strict=True)),
            **dict(zip(("hours", "low_hours", "high_hours"), map(finite, hours), strict=True)),
        }
        shown = []
        for values in ([one / 1e6 for one in ends], hours):
            best, low, high = (table.number(one) if math.isfinite(one) else "never" for one in values)
            shown.append(f"{best} [{low}, {high}]")
        last = f"{losses[-1]:.3f} at {table.number(tokens[-1] / 1e6)}"
        rows.append([name, f"{rate:,.0f}", last, f"{exponent} ({source})", f"{found_at.floor:.2f}", *shown])
    measured = {"tokens": tokens, "losses": losses, "training_seconds": seconds, "tokens_per_second": rate}
    return {**measured, "target": target, "projections": projections}, rows


def gpt_config(name: str, overrides: Sequence[str]) -> GptRunConfig:
    """Return fineweb_`name` with its overrides."""
    config = config_of(find("fineweb"), name, DATA, overrides)
    assert isinstance(config, GptRunConfig)
    return config


def finite(value: float) -> float | None:
    """Return `value`, or None, which JSON has, for an infinite one."""
    return value if math.isfinite(value) else None


def main() -> None:
    options = parser(__doc__)
    options.add_argument("part", choices=("steps", "curve"))
    options.add_argument("--data-folder", type=Path, help="token shards")
    options.add_argument("--configs", nargs="+", default=list(TINY_OF), help="as for `timedrun run fineweb`")
    options.add_argument("--tokens", type=float, nargs="+", default=[40e6, 60e6, 100e6, 160e6], help="of each run")
    options.add_argument("--runs", type=int, default=1, help="at each number of tokens, each with its seed")
    arguments, overrides = options.parse_known_args()
    large = [name for name in arguments.configs if name.split("+")[0] not in TINY_OF]
    if arguments.tiny and large:
        options.error(f"--tiny is for {' and '.join(TINY_OF)} only; leave {', '.join(large)} out of --configs")
    block = Block(f"fineweb_{arguments.part}", arguments)
    data_folder: Path | None = arguments.data_folder
    tokens: Sequence[float] = TINY_TOKENS if block.tiny else arguments.tokens
    own: Mapping[str, Sequence[str]] = dict.fromkeys(arguments.configs, ())
    if block.tiny:
        data_folder = block.out / "data_fineweb"
        own = {name: TINY_OF[name.split("+")[0]] for name in arguments.configs}
        overrides = [*TINY, "--model.vocabulary", str(write_tiny_shards(data_folder)), *overrides]
    if data_folder is None:
        options.error("--data-folder is missing: the folder of the token shards")
    if len(tokens) * arguments.runs < FEWEST:
        options.error(f"a fit needs at least {FEWEST} runs; give more --tokens or --runs")
    words = {name: [*overrides, *own[name]] for name in arguments.configs}
    configs = {name: gpt_config(name, words[name]) for name in words}
    if arguments.part == "steps":
        measure(block, configs, data_folder)
        block.finish()
        return
    rows: list[list[str]] = []
    for name, config in configs.items():
        known = facts(data_folder, config.model.context, config.data)
        passes = max(tokens) / known.train_tokens
        block.check(f"{name}: enough text", passes <= MOST_EPOCHS, {"passes over the text": passes})
        launch = ["--data-folder", str(data_folder), *(TINY_LAUNCH if block.tiny else [])]
        folder = sweep(block, name, config, tokens, arguments.runs, [*launch, *words[name]])
        block.values[name], shown = curve(name, config, folder)
        rows += shown
    header = ["config", "tokens/s", "loss at 10^6 tokens", "exponent", "floor", "10^6 tokens", "hours"]
    block.show("PROJECTION to the target from short runs, with the 95 % interval of the fit alone", header, rows)
    block.finish()


if __name__ == "__main__":
    main()
