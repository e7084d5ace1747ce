"""Training steps of configs on a GPU: loss and gradients against a reference first, then times in turns.

Usage: python -m benchmarks.gpu.steps CASE [CONFIG ...] --out results/gpu/DATE-GPU [--data-folder FOLDER] [--tiny]
           [--positions 0.1 0.5 0.9] [--chunks 3] [--chunk 3] [--skip 3] [--compared] [OVERRIDE ...]

CASE: bert, BERT-Large from transformers' eager model to timedrun's, each rung with the speed-ups of the one before;
images, ResNet-50 on resident images; fineweb, GPT-2 124M. CONFIG: a label of the case (default: all), or a config as
`timedrun run` names it, with options of its own in the same word, as in "methods --compile". Overrides are for all.

Each config is compared as it is timed (bf16, compiled, with its attention kernel and layout) with an eager model in
fp32, and timedrun's BERTs in fp32 too; README.md has the commands of this folder. With --tiny, steps whose format the
CPU emulates are timed in fp32, after the comparison.

Minutes to 75.9 %: 84 (baseline) or 27 (methods) epochs of 1,281,167 images, as in MosaicML's logs of MLPerf Training
v2.0, over the samples per second. float8 needs an H100 or newer. A machine without a network lacks some packages of
pyproject.toml's `dependencies`: `pip install --no-deps --target carried mlperf-logging==4.1.68 tyro cattrs ...`
elsewhere, then PYTHONPATH=carried:.:logging.
"""

import argparse
import json
import math
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from image_classification.build import build as build_images
from image_classification.configs import ImageRunConfig
from image_classification.datasets import declared
from image_classification.model import Bottleneck
from judging.ground.token_shard import write_shard
from language_model.batches import collate_for
from language_model.build import build_model as build_bert
from language_model.collator import MaskedBatch
from language_model.configs import BertRunConfig
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.model import Decoder, NextTokenLoss
from language_model.gpt.model import build_model as build_gpt
from language_model.settings import SpeedUps
from language_model.text.store import MaskedSequences
from language_model.text.synthetic_store import sampled_lengths, write_synthetic_store
from language_model.weights import ALIASES, to_own
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_benchmark import StepRow, measure_steps, show_steps
from timedrun.methods import ChannelsLast, Float8, stack
from timedrun.methods.training.loss import LOSSES
from timedrun.methods.training.number_formats import emulated
from timedrun.methods.training.precision import Precision, set_backends
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.config import RunConfig, dump
from timedrun.runner.config_choice import config_of
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.provenance import source, system
from timedrun.runner.storage.benchmark_folders import ROOT

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
    def of(cls, loss: Tensor, parameters: Mapping[str, Tensor]) -> Self:
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


MASKED_SHARE = 0.15
LOSS, GRADIENT = 1e-4, 1e-3
"""Largest relative difference of BERTs in fp32: of the loss; of the norm of any tensor's gradient."""
RESIDUAL = 0.2
"""Scale of each block's last batch norm of a ResNet that is compared: a random ResNet magnifies rounding."""
IMAGES_FURTHER = 2.0
"""Largest ratio of distances from fp32, as timed over eager bf16. On a CPU, ResNet-50 with BlurPool at 96 px: eager
bf16, in which rounding switches ReLUs, is 0.31 away, and one with another kernel, padding or stride of the blur 1.2."""


@dataclass(frozen=True)
class Case:
    """Configs to compare, and what differs in all of them."""

    benchmark: str
    data: str
    configs: Mapping[str, str]
    """Config with its options, by label."""
    overrides: str = ""
    tiny: str = ""
    """Options of all configs under --tiny."""
    tiny_of: Mapping[str, str] = field(default_factory=dict)
    """Those of one, by label."""


SMALL = "--micro-batch 28"  # as transformers' model takes
UNFUSED = f"{SMALL} --no-compile --speed.no-fused-dropout-add-norm --speed.no-fused-dense-gelu-dense"
UNFUSED += " --speed.no-low-precision-residual"
CASES = {
    "bert": Case(
        "language_model",
        "wikipedia",
        {
            "HF eager": "baseline",
            "HF sdpa": "baseline --speed.attention sdpa",
            "HF sdpa, compiled": "baseline --speed.attention sdpa --compile",
            "unpadded": f"methods {UNFUSED} --speed.no-masked-head --speed.no-last-layer-subset"
            " --speed.pad-vocabulary 1",
            "+ masked head, subset": f"methods {UNFUSED}",
            "+ fused, 16-bit residual": f"methods {SMALL} --no-compile",
            "+ compiled": f"methods {SMALL}",
            "methods": "methods",
            "+ float8": "methods+float8 --speed.no-fused-dense-gelu-dense",
        },
        "--start random --data.eval-batch 28",
        "--device cpu --no-compile --warm-up-steps 1 --global-batch 8 --micro-batch 8 --max-samples 48000"
        " --architecture.layers 2 --architecture.hidden 64 --architecture.heads 4 --architecture.intermediate 256"
        " --architecture.positions 64 --architecture.vocabulary 1024 --data.longest 64 --data.max-predictions 12"
        " --data.eval-batch 8",
    ),
    "images": Case(
        "image_classification",
        "imagenet",
        {
            "baseline": "baseline",
            "methods, one size": "methods-progressive_resizing",
            "baseline, compiled": "baseline --compile",
            "methods, one size, compiled": "methods-progressive_resizing --compile",
        },
        "--dataset synthetic --data.source synthetic --data.synthetic-classes 1000 --data.synthetic-train 8192"
        " --data.synthetic-eval 256 --data.eval-batch 256",
        "--device cpu --no-compile --warm-up-steps 1 --global-batch 8 --micro-batch 4 --model.layers 1 1 1 1"
        " --model.widths 16 32 64 128 --data.train-size 32 --data.eval-size 32 --data.synthetic-train 128",
    ),
    "fineweb": Case(
        "fineweb",
        "fineweb",
        {"baseline": "baseline", "methods": "methods"},
        "",
        "--dataset tiny --device cpu --no-compile --warm-up-steps 1 --global-batch 4 --micro-batch 2 --model.layers 2"
        " --model.hidden 32 --model.heads 2 --model.context 128 --model.vocabulary 257 --schedule.steps 40"
        " --data.eval-tokens 512",
        {
            "baseline": "--schedule.warmup-steps 2",
            "methods": "--model.attention-window 128 --window-warmup-steps 40 --model.value-embeddings 1"
            " --schedule.cooldown-steps 16",
        },
    ),
}


def configs_of(case: Case, chosen: list[str], overrides: list[str], tiny: bool) -> dict[str, RunConfig]:
    """Return the `chosen` configs of a case, labels or texts, with their options and `overrides`; by default all."""
    values = {}
    for label in chosen or case.configs:
        text, *own = shlex.split(case.configs.get(label, label))
        words = [*own, *case.overrides.split(), *(case.tiny.split() if tiny else [])]
        if tiny:
            words += case.tiny_of.get(text.split("+")[0], "").split()
        values[label] = config_of(find(case.benchmark), text, case.data, [*words, *overrides])
    return values


def sampled_batch(config: BertRunConfig, lengths: NDArray[np.int64], device: torch.device) -> MaskedBatch:
    """Return a batch of random tokens, 15 % of them masked, in the layout of `config`; the same tokens in each."""
    random, vocabulary = np.random.default_rng(2), config.architecture.vocabulary
    counts = np.maximum(1, (MASKED_SHARE * lengths).round().astype(np.int64))
    places = zip(lengths.cumsum() - lengths, lengths, counts, strict=True)
    sequences = MaskedSequences(
        tokens=random.integers(1, vocabulary, lengths.sum()),
        lengths=lengths,
        first=lengths // 2,
        masked=np.concatenate([start + np.sort(random.permutation(size)[:count]) for start, size, count in places]),
        labels=random.integers(1, vocabulary, counts.sum()),
    )
    return collate_for(config, sequences, device, len(lengths), len(sequences.masked))


def gradients_of(config: RunConfig, device: torch.device) -> LossGradients:
    """Return loss and gradients of a fixed small batch, as `config` computes them on `device`."""
    set_backends(device, tf32=config.tf32 and config.precision != "fp32", cudnn_benchmark=config.cudnn_benchmark)
    if isinstance(config, BertRunConfig):
        return bert_gradients(config, device)
    if isinstance(config, ImageRunConfig):
        return image_gradients(config, device)
    assert isinstance(config, GptRunConfig)
    return gpt_gradients(config, device)


def bert_gradients(config: BertRunConfig, device: torch.device) -> LossGradients:
    # Mostly short sequences, so that a row that attends to another sequence, or to padding, changes much.
    positions = config.architecture.positions
    batch = sampled_batch(config, np.append(sampled_lengths(7, positions // 4, 2), positions), device)
    model: nn.Module = build_bert(config, torch.device("cpu"))
    stack(*config.methods).model(model).to(device)
    if config.compile:
        model.compile()
    with Precision(config.precision, device).autocast():
        loss = model(batch) / batch.global_masked
    return LossGradients.of(
        loss, {name.removeprefix("model."): parameter for name, parameter in model.named_parameters()}
    )


def image_gradients(config: ImageRunConfig, device: torch.device) -> LossGradients:
    # As many images as are timed, so that the timed process finds the compiled code in the cache.
    size, generator = config.data.train_size, torch.Generator().manual_seed(1)
    images = torch.rand(config.micro_batch, 3, size, size, generator=generator).to(device)
    labels = torch.randint(config.model.classes, (config.micro_batch,), generator=generator).to(device)
    config = replace(config, model=replace(config.model, initialisation="kaiming"))
    parts = build_images(config, ProcessGroup(0, 1, 0, device), declared(config.data), device)
    for module in parts.model.modules():
        if isinstance(module, Bottleneck):
            nn.init.constant_(module.bn3.weight, RESIDUAL)
    if config.compile:
        parts.model.compile(dynamic=False)
    parts.methods.before_step(parts.model, 0, 0.0)
    inputs, targets = parts.methods.batch(images, labels, config.model.classes)
    with Precision(config.precision, device).autocast():
        loss = LOSSES[config.loss](parts.model(inputs), targets)
    return LossGradients.of(loss, dict(parts.model.named_parameters()))


def gpt_gradients(config: GptRunConfig, device: torch.device) -> LossGradients:
    # Few layers, for the CPU; with zero projections no gradient would reach the attention. Two sequences hold several
    # documents, in the middle of the window's warm-up.
    model = replace(config.model, layers=max(2, 2 * config.model.value_embeddings), zero_projections=False)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocabulary - 1, (2, model.context + 1), generator=generator)
    tokens[torch.rand(tokens.shape, generator=generator) < 8 / model.context] = model.vocabulary - 1
    net = stack(*config.methods).model(build_gpt(model, 1)).to(device)
    if isinstance(net, Decoder) and net.window is not None:
        net.window.fill_(config.window(config.schedule.steps // 2))
    summed = NextTokenLoss(net)
    if config.compile:
        summed.compile()
    inputs, targets = (part.contiguous().to(device) for part in (tokens[:, :-1], tokens[:, 1:]))
    with Precision(config.precision, device).autocast():
        loss = summed(inputs, targets) / targets.numel()
    return LossGradients.of(loss, dict(net.named_parameters()))


@cache
def reference(config: RunConfig, device: torch.device) -> tuple[LossGradients, dict[str, float]]:
    """Return loss and gradients of the eager `config` in fp32, and the distances of those in its precision."""
    exact_methods = tuple(method for method in config.methods if not isinstance(method, Float8))
    exact = gradients_of(replace(config, precision="fp32", methods=exact_methods), device)
    return exact, gradients_of(config, device).distances(exact.gradients)


def compare(block: Block, label: str, config: RunConfig) -> None:
    """Check loss and gradients of `config` as it is timed against a reference: transformers' eager BERT, a ResNet in
    the usual memory layout, or a GPT under dense masks on the CPU."""
    methods = tuple(method for method in config.methods if not isinstance(method, ChannelsLast))
    plain = replace(config, name="", notes="", compile=False, methods=methods)
    device = torch.device("cpu") if isinstance(config, GptRunConfig) else block.device
    own_bert = isinstance(config, BertRunConfig) and config.implementation == "timedrun"
    if isinstance(plain, BertRunConfig):
        plain = replace(plain, micro_batch=0, implementation="transformers", speed=SpeedUps())
    exact, usual = reference(plain, device)

    def named(timed: LossGradients) -> LossGradients:
        """Return `exact` under the names, and with the shapes, of the gradients of timedrun's BERT."""
        assert isinstance(config, BertRunConfig)
        known = {name: gradient for name, gradient in exact.gradients.items() if name not in ALIASES}
        shapes = {name: tuple(gradient.shape) for name, gradient in timed.gradients.items()}
        return exact._replace(gradients=to_own(known, shapes))

    if own_bert:
        timed = gradients_of(replace(config, precision="fp32", compile=False, methods=()), block.device)
        apart = max(timed.distances(named(timed).gradients).values())
        difference = abs(timed.loss - exact.loss) / exact.loss
        values = {"loss apart": difference, "gradients apart": apart}
        block.check(f"{label}: fp32 as transformers", difference <= LOSS and apart <= GRADIENT, values)
    timed = gradients_of(config, block.device)
    wanted, title = named(timed) if own_bert else exact, f"{label}: as timed, as eager fp32"
    if isinstance(config, ImageRunConfig):
        block.compare(title, timed, wanted, usual, further=IMAGES_FURTHER, largest=math.inf)
    else:
        block.compare(title, timed, wanted, usual, attention=True)
    if block.device.type == "cuda":
        torch.cuda.empty_cache()


def write_tiny_shards(folder: Path) -> None:
    """Write this file's bytes as shards of both splits, each paragraph a document."""
    end_of_text, tokens = 256, list[int]()
    for paragraph in Path(__file__).read_bytes().split(b"\n\n"):
        tokens += [end_of_text, *paragraph]
    folder.mkdir(parents=True)
    for name in ("tiny_train_000001.bin", "tiny_val_000000.bin"):
        write_shard(folder / name, np.array(tokens, np.uint16), end_of_text + 1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True, help="folder of the results, such as results/gpu/DATE-GPU")
    options.add_argument("--tiny", action="store_true", help="run all parts on a CPU, on tiny models, in seconds")
    options.add_argument("case", choices=CASES)
    options.add_argument("--data-folder", type=Path, help="prepared text, or token shards")
    options.add_argument("--positions", type=float, nargs="+", default=[0.1, 0.5, 0.9], help="fractions of the run")
    options.add_argument("--chunks", type=int, default=3, help="chunks of steps at each position (default 3)")
    options.add_argument("--chunk", type=int, default=3, help="steps of a chunk (default 3)")
    options.add_argument("--skip", type=int, default=3, help="steps before a chunk, not measured (default 3)")
    options.add_argument("--compared", action="store_true", help="time only: an earlier call compared these configs")
    given, rest = options.parse_known_args()
    case, chosen = CASES[given.case], list(takewhile(lambda word: not word.startswith("-"), rest))
    block = Block(f"steps_{given.case}", given)
    configs = configs_of(case, chosen, rest[len(chosen) :], block.tiny)
    block.values["compared"] = not given.compared
    for label, config in configs.items() if not given.compared else ():
        compare(block, label, config)
    reference.cache_clear()
    sizes = {"chunks": given.chunks, "chunk": given.chunk, "skip": given.skip}
    plan = StepPlan(positions=tuple(given.positions), **sizes, evaluate=False)
    if block.tiny:
        plan = StepPlan(positions=(0.5,), chunks=2, chunk=1, skip=2, evaluate=False)
        # An emulated format is compared above, and slow.
        exact = {label for label, config in configs.items() if emulated(config.precision, config.device)}
        configs |= {label: replace(configs[label], precision="fp32") for label in exact}
    with TemporaryDirectory() as folder:
        data_folder, first = given.data_folder or Path(folder) / "data", next(iter(configs.values()))
        if isinstance(first, BertRunConfig) and not given.data_folder:
            sizes = first.architecture
            count = 8 * first.global_batch
            write_synthetic_store(data_folder, count, longest=sizes.positions, vocabulary=sizes.vocabulary)
        elif given.case == "fineweb" and block.tiny:
            write_tiny_shards(data_folder)
        block.measure("steps", find(case.benchmark), configs, plan=plan, data_folder=data_folder, counted=1)


if __name__ == "__main__":
    main()
