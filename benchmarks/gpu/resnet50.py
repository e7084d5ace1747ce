"""Training steps of ResNet-50 by image size: baseline and methods, eager and compiled, and fed by a loader.

Usage: python -m benchmarks.gpu.resnet50 --out results/gpu/DATE-GPU [--sizes 88 224] [--compiled 224]
           [--micro-batch 256] [--store LOADER=FOLDER ...] [--tiny]

Global batch 2,048 in micro-batches of --micro-batch. Images are random bytes, resident on the device. First, logits and
gradients in channels-last, in fp32 and bf16, must be about as near to fp64 as those in the usual order; and loss and
gradients of every config and size as timed, in bf16 and compiled, about as near to fp32 as those of eager bf16 in the
usual order. Then the benchmark's own training step is timed, the configs in turns. --store adds steps fed by a loader
from a prepared store, such as raw=FOLDER, at the smallest and the largest size of each config's epochs, decoded at it.
The time to 75.9 % is projected from these rates and the published epochs (84 and 27), evaluation left out: by the
resident rates, and for each loader by the slower of both at each epoch's size.

Needs the packages of pyproject.toml's `dependencies`; carry those that a machine without a network lacks
(see bert_ladder), for --store also those of the loader (extra `vision`, `ffcv`). Compiling takes a minute a config,
for the comparison and for the timed process, which finds most kernels in the other's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.gpu.block import Block, LossGradients, parser
from image_classification.build import build
from image_classification.configs import ImageRunConfig, imagenet_baseline, imagenet_methods
from image_classification.datasets import declared
from image_classification.loaders.registry import LOADERS
from image_classification.model import RESNET50, Bottleneck, ModelConfig, build_model
from image_classification.stores.manifest import read_manifest
from timedrun.analysis.profiled_run import StepPlan
from timedrun.benchmark import find
from timedrun.distributed.process_group import ProcessGroup
from timedrun.methods import ChannelsLast, Method, ProgressiveResizing, stack
from timedrun.training.loss import LOSSES
from timedrun.training.precision import Precision, set_backends

SIZES = (88, 128, 160, 176, 224)
CLASSES = 1000
BASES: Mapping[str, Callable[[], ImageRunConfig]] = {"baseline": imagenet_baseline, "methods": imagenet_methods}
EPOCHS = {"baseline": 84, "methods": 27}
"""To 75.9 % in MosaicML's logs of MLPerf Training v2.0."""
TRAIN_IMAGES = 1_281_167
TINY = ModelConfig(block="bottleneck", layers=(1, 1, 1, 1), widths=(16, 32, 64, 128), classes=CLASSES)
TINY_SIZE = 32
FURTHER = 10.0
"""Largest ratio of the distances from fp64, channels-last over the usual order: a random ResNet magnifies rounding."""
RESIDUAL = 0.2
"""Scale of each block's last batch norm in the comparison in bf16, so that rounding is less magnified."""
FURTHER_IN_BF16 = 2.0
"""Largest ratio of distances from fp32, as timed over eager bf16. On a CPU, ResNet-50 with BlurPool at 96 px: eager
bf16, in which rounding switches ReLUs, is 0.31 away, and one with another kernel, padding or stride of the blur 1.2."""
LIMITS = 1.05
"""Ratio of seconds per image, fed over resident, from which the loader limits."""


class Projection(NamedTuple):
    """Projected training to 75.9 %."""

    minutes: float
    limited: float
    """Share of the images at whose size the loader is slower than the resident step."""


def resident(name: str, size: int, micro_batch: int, tiny: bool, *, compiled: bool = False) -> ImageRunConfig:
    """Return imagenet_baseline or imagenet_methods on resident synthetic images of one size."""
    base = BASES[name]()
    data = replace(
        base.data, source="synthetic", train_size=size, eval_size=size, eval_batch=256, synthetic_classes=CLASSES
    )
    batch = 32 if tiny else base.global_batch
    return replace(
        base,
        name=f"{name}_{size}px",
        dataset="synthetic",
        device="cpu" if tiny else "cuda",
        global_batch=batch,
        micro_batch=16 if tiny else micro_batch,
        model=replace(TINY, initialisation=base.model.initialisation) if tiny else base.model,
        data=replace(data, synthetic_train=4 * batch, synthetic_eval=256),
        methods=without_resizing(base),
        compile=compiled and not tiny,
        warm_up_steps=1 if tiny else base.warm_up_steps,
    )


def without_resizing(config: ImageRunConfig) -> tuple[Method, ...]:
    """Return the methods of `config` but for progressive resizing: each size is measured on its own."""
    return tuple(method for method in config.methods if not isinstance(method, ProgressiveResizing))


def compare_layouts(block: Block, model: ModelConfig, size: int) -> None:
    """Check that channels-last, which is timed, is about as near to fp64 as the usual order, in fp32 and in bf16."""
    set_backends(tf32=False, cudnn_benchmark=False)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(16, 3, size, size, generator=generator, dtype=torch.float64).to(block.device)
    labels = torch.randint(model.classes, (16,), generator=generator).to(block.device)

    def computed(dtype: torch.dtype, layout: torch.memory_format, *, bf16: bool = False) -> dict[str, torch.Tensor]:
        """Return logits and gradients from the same weights."""
        net = build_model(replace(model, initialisation="kaiming"), 1)
        net = net.to(block.device, dtype).to(memory_format=layout)
        with torch.autocast(block.device.type, torch.bfloat16, enabled=bf16):
            logits = net(images.to(dtype).contiguous(memory_format=layout))
            nn.functional.cross_entropy(logits, labels).backward()
        gradients = [one.grad.flatten().double() for one in net.parameters() if one.grad is not None]
        return {"logits": logits.detach().double(), "gradients": torch.cat(gradients)}

    exact = computed(torch.float64, torch.contiguous_format)
    for bf16 in (False, True):
        usual, last = (
            computed(torch.float32, layout, bf16=bf16) for layout in (torch.contiguous_format, torch.channels_last)
        )
        for name, right in exact.items():
            distance = [float((one[name] - right).norm() / right.norm()) for one in (usual, last)]
            title = f"{name} in {'bf16' if bf16 else 'fp32'}, channels-last as the usual order"
            found = {"usual order from fp64": distance[0], "channels-last from fp64": distance[1]}
            block.check(title, distance[1] <= FURTHER * distance[0], found)


def compare_as_timed(block: Block, name: str, config: ImageRunConfig) -> None:
    """Check loss and gradients of a micro-batch as timed against those of eager fp32 in the usual order. It is as large
    as the timed ones, so that the timed process finds the compiled code in the cache."""
    size, generator = config.data.train_size, torch.Generator().manual_seed(1)
    images = torch.rand(config.micro_batch, 3, size, size, generator=generator).to(block.device)
    labels = torch.randint(config.model.classes, (config.micro_batch,), generator=generator).to(block.device)

    def computed(one: ImageRunConfig) -> LossGradients:
        set_backends(tf32=one.tf32 and one.precision != "fp32", cudnn_benchmark=False)
        ranks = ProcessGroup(0, 1, 0, block.device)
        parts = build(one, ranks, declared(one.data), block.device)
        for module in parts.model.modules():
            if isinstance(module, Bottleneck):
                nn.init.constant_(module.bn3.weight, RESIDUAL)
        if one.compile:
            parts.model.compile(dynamic=False)
        parts.methods.before_step(parts.model, 0, 0.0)
        inputs, targets = parts.methods.batch(images, labels, one.model.classes)
        with Precision(one.precision, block.device).autocast():
            loss = LOSSES[one.loss](parts.model(inputs), targets)
        return LossGradients.of(loss, dict(parts.model.named_parameters()))

    config = replace(config, model=replace(config.model, initialisation="kaiming"))
    plain = tuple(method for method in config.methods if not isinstance(method, ChannelsLast))
    eager = replace(config, compile=False, methods=plain)
    exact = computed(replace(eager, precision="fp32"))
    usual = computed(eager).distances(exact.gradients)
    timed = computed(config)
    title = f"{name}: as timed, as eager fp32"
    block.compare(title, timed, exact, usual, further=FURTHER_IN_BF16, largest=math.inf)
    if block.device.type == "cuda":
        torch.cuda.empty_cache()


def epoch_sizes(name: str) -> list[int]:
    """Return the side in pixels of the images of each published epoch."""
    config = BASES[name]()
    resizing = stack(*(replace(m, where="loader") for m in config.methods if isinstance(m, ProgressiveResizing)))
    return [resizing.input_size(config.data.train_size, epoch / EPOCHS[name]) for epoch in range(EPOCHS[name])]


def project(name: str, rates: Mapping[int, float], fed: Mapping[int, float] | None = None) -> Projection:
    """Project training to 75.9 % from images per second by size, linear in the pixels between: of the resident step,
    and `fed` by a loader, of which the slower one counts."""
    at = np.square(epoch_sizes(name))
    seconds = seconds_per_image(rates, at)
    loading = seconds_per_image(fed, at) if fed else np.zeros(len(at))
    minutes = TRAIN_IMAGES * np.maximum(seconds, loading).sum() / 60
    return Projection(float(minutes), float((loading > LIMITS * seconds).mean()))


def seconds_per_image(rates: Mapping[int, float], pixels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the seconds at each number of `pixels`, between the sizes of `rates`."""
    sizes = np.array(sorted(rates))
    return np.interp(pixels, np.square(sizes), [1 / rates[size] for size in sizes])


def fed(name: str, size: int, loader: Any, folder: Path, micro_batch: int, tiny: bool) -> ImageRunConfig:
    """Return imagenet_baseline or imagenet_methods, fed with images of one size from the store in `folder`."""
    base, manifest = BASES[name](), read_manifest(folder)
    resizes = manifest.settings.evaluation_resizes or (base.data.eval_resize,)
    eval_resize = base.data.eval_resize if base.data.eval_resize in resizes else resizes[0]
    data = replace(base.data, loader=loader, store=manifest.settings, train_size=size, eval_resize=eval_resize)
    changes: dict[str, Any] = {"methods": without_resizing(base), "micro_batch": micro_batch, "model": base.model}
    if tiny:
        data = replace(data, workers=1, eval_size=size, eval_batch=8)
        changes |= {"device": "cpu", "global_batch": 8, "micro_batch": 4, "warm_up_steps": 1, "model": TINY}
    changes["model"] = replace(changes["model"], classes=len(manifest.classes))
    return replace(base, data=data, **changes)


def measure_loaders(
    block: Block, given: Sequence[str], micro_batch: int, plan: StepPlan
) -> dict[str, dict[str, dict[int, float]]]:
    """Measure steps of baseline and methods that are fed from prepared stores, each LOADER=FOLDER; return the images
    per second by loader, config and size."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for text in given:
        loader, _, folder = text.partition("=")
        if loader not in LOADERS:
            raise SystemExit(f"--store {text}: no loader {loader}; the loaders are: {', '.join(LOADERS)}")
        chosen = {
            (name, size): fed(name, size, loader, Path(folder), micro_batch, block.tiny)
            for name in EPOCHS
            for size in ([TINY_SIZE] if block.tiny else sorted({min(epoch_sizes(name)), max(epoch_sizes(name))}))
        }
        labelled = {f"{name}, {size} px": config for (name, size), config in chosen.items()}
        rows = block.measure(
            f"fed by {loader}",
            find("image_classification"),
            labelled,
            plan=plan,
            data_folder=Path(folder),
            counted=1,
        )
        rates = found.setdefault(loader, {name: {} for name in EPOCHS})
        for (name, size), label in zip(chosen, labelled, strict=True):
            if label in rows:
                rates[name][size] = rows[label].samples_per_second
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="pixels per side")
    options.add_argument("--compiled", type=int, nargs="*", default=[128, 224], help="sizes also measured compiled")
    options.add_argument("--micro-batch", type=int, default=256)
    options.add_argument("--store", nargs="+", default=[], metavar="LOADER=FOLDER", help="prepared stores")
    arguments = options.parse_args()
    block = Block("resnet50", arguments)
    sizes, compiled = ([TINY_SIZE], [TINY_SIZE]) if block.tiny else (arguments.sizes, arguments.compiled)
    chunks, chunk = (2, 1) if block.tiny else (5, 3)
    plan = StepPlan(positions=(0.5,), chunks=chunks, chunk=chunk, skip=2, evaluate=False)
    compare_layouts(block, TINY if block.tiny else RESNET50, max(sizes))
    if block.device.type == "cuda":
        torch.cuda.empty_cache()
    contestants: dict[int, dict[str, tuple[str, ImageRunConfig]]] = {}
    for size in sizes:
        contestants[size] = {
            f"{name}{', compiled' * done}": (
                name,
                resident(name, size, arguments.micro_batch, block.tiny, compiled=done),
            )
            for done in ((False, True) if size in compiled else (False,))
            for name in EPOCHS
        }
        for label, (_, config) in contestants[size].items():
            compare_as_timed(block, f"{label}, {size} px", config)
    rates: dict[str, dict[int, float]] = {name: {} for name in EPOCHS}
    for size, chosen in contestants.items():
        of_size = {label: config for label, (_, config) in chosen.items()}
        rows = block.measure(f"{size} px", find("image_classification"), of_size, plan=plan, counted=1)
        for label, row in rows.items():
            name = chosen[label][0]
            rates[name][size] = max(rates[name].get(size, 0.0), row.samples_per_second)
    loaded = measure_loaders(block, arguments.store, arguments.micro_batch, plan)
    feeds: dict[str, Mapping[str, Mapping[int, float] | None]] = {"resident": dict.fromkeys(EPOCHS), **loaded}
    projections = {feed: {name: project(name, rates[name], of[name]) for name in EPOCHS} for feed, of in feeds.items()}
    block.values |= {"images_per_second": rates, "fed_images_per_second": loaded}
    block.values["projections"] = {
        feed: {name: one._asdict() for name, one in of.items()} for feed, of in projections.items()
    }
    shown = []
    for feed, of in projections.items():
        for name, one in of.items():
            limit = "the GPU" if one.limited == 0 else f"the loader, in {one.limited:.0%} of the images"
            ratio = of["baseline"].minutes / one.minutes
            measured = [f"{rates[name][size]:,.0f}" for size in sizes]
            shown.append([name, feed, *measured, f"{one.minutes:,.1f}", f"{ratio:.2f}", limit])
    header = ["config", "images", *(f"{size} px" for size in sizes), "minutes to 75.9 %", "x baseline", "limited by"]
    block.show("resident images per second, the faster of eager and compiled, and projections", header, shown)
    block.finish()


if __name__ == "__main__":
    main()
