"""Training steps of ResNet-50 by image size: baseline and methods, eager and compiled, and fed by a loader.

Usage: python -m benchmarks.gpu.resnet50 --out results/gpu/DATE-GPU [--sizes 88 224] [--compiled 224]
           [--micro-batch 256] [--store LOADER=FOLDER ...] [--tiny]

Global batch 2,048 in micro-batches of --micro-batch. Images are random bytes, resident on the device. First, logits and
gradients in channels-last, in fp32 and bf16, must be about as near to fp64 as those in the usual order. Then the
benchmark's own training step is timed, the configs in turns. --store adds steps at 224 px fed by a loader from a
prepared store, such as raw=FOLDER.
The time to 75.9 % is projected from these rates and the published epochs (84 and 27), evaluation left out.

Needs the packages of pyproject.toml's `dependencies`; carry those that a machine without a network lacks
(see bert_ladder), for --store also those of the loader (extra `vision`, `ffcv`). Compiling takes a minute a config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.gpu.block import Block, losses_apart, parser
from image_classification.configs import ImageRunConfig, imagenet_baseline, imagenet_methods
from image_classification.model import RESNET50, ModelConfig, build_model
from image_classification.stores.manifest import read_manifest
from timedrun.analysis.profiled_run import StepPlan
from timedrun.bench.step_benchmark import StepRow
from timedrun.benchmark import find
from timedrun.methods import Method, ProgressiveResizing, stack
from timedrun.training.precision import set_backends

SIZES = (88, 128, 160, 176, 224)
CLASSES = 1000
EPOCHS = {"baseline": 84, "methods": 27}
"""To 75.9 % in MosaicML's logs of MLPerf Training v2.0."""
TRAIN_IMAGES = 1_281_167
TINY = ModelConfig(block="bottleneck", layers=(1, 1, 1, 1), widths=(16, 32, 64, 128), classes=CLASSES)
FURTHER = 10.0
"""Largest ratio of the distances from fp64, channels-last over the usual order: a random ResNet magnifies rounding."""
FIRST_LOSSES = 0.02
"""Largest relative difference of the first losses between eager and compiled steps."""


def configs(name: str, size: int, micro_batch: int, tiny: bool, *, compiled: bool = False) -> ImageRunConfig:
    """Return imagenet_baseline or imagenet_methods on resident synthetic images of one size."""
    base = {"baseline": imagenet_baseline, "methods": imagenet_methods}[name]()
    data = replace(
        base.data, source="synthetic", train_size=size, eval_size=size, eval_batch=256, synthetic_classes=CLASSES
    )
    batch = 8 if tiny else base.global_batch
    return replace(
        base,
        name=f"{name}_{size}px",
        dataset="synthetic",
        device="cpu" if tiny else "cuda",
        global_batch=batch,
        micro_batch=4 if tiny else micro_batch,
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


def projected_minutes(name: str, rates: Mapping[int, float]) -> float:
    """Return the minutes of training to 75.9 % from images per second by size, linear in the pixels between."""
    config = {"baseline": imagenet_baseline, "methods": imagenet_methods}[name]()
    sizes = np.array(sorted(rates))
    seconds = [1 / rates[size] for size in sizes]
    resizing = stack(*(replace(m, where="loader") for m in config.methods if isinstance(m, ProgressiveResizing)))
    fractions = [epoch / EPOCHS[name] for epoch in range(EPOCHS[name])]
    at = [resizing.input_size(config.data.train_size, fraction) for fraction in fractions]
    return float(TRAIN_IMAGES * np.interp(np.square(at), np.square(sizes), seconds).sum() / 60)


def measure_loaders(block: Block, given: list[str], micro_batch: int, plan: StepPlan) -> None:
    """Measure steps of baseline and methods that are fed from prepared stores, each LOADER=FOLDER."""
    for text in given:
        loader, _, folder = text.partition("=")
        store = read_manifest(Path(folder)).settings
        chosen = {}
        for name, config in (("baseline", imagenet_baseline()), ("methods", imagenet_methods())):
            data = replace(config.data, loader=loader, store=store)
            methods = without_resizing(config)
            chosen[f"{name}, {loader}"] = replace(config, data=data, micro_batch=micro_batch, methods=methods)
        images = find("image_classification")
        block.measure(f"fed by {loader}", images, chosen, plan=plan, data_folder=Path(folder), counted=1)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="pixels per side")
    options.add_argument("--compiled", type=int, nargs="*", default=[128, 224], help="sizes also measured compiled")
    options.add_argument("--micro-batch", type=int, default=256)
    options.add_argument("--store", nargs="+", default=[], metavar="LOADER=FOLDER", help="prepared stores")
    arguments = options.parse_args()
    block = Block("resnet50", arguments)
    sizes, compiled = ([32], [32]) if block.tiny else (arguments.sizes, arguments.compiled)
    chunks, chunk = (2, 1) if block.tiny else (5, 3)
    plan = StepPlan(positions=(0.5,), chunks=chunks, chunk=chunk, skip=2, evaluate=False)
    compare_layouts(block, TINY if block.tiny else RESNET50, max(sizes))
    if block.device.type == "cuda":
        torch.cuda.empty_cache()
    rows: dict[tuple[str, int, bool], StepRow] = {}
    for size in sizes:
        contestants = [(name, done) for done in ((False, True) if size in compiled else (False,)) for name in EPOCHS]
        chosen = {
            f"{name}{', compiled' * done}": configs(name, size, arguments.micro_batch, block.tiny, compiled=done)
            for name, done in contestants
        }
        found = block.measure(f"{size} px", find("image_classification"), chosen, plan=plan, counted=1)
        for (name, done), label in zip(contestants, chosen, strict=True):
            if label in found:
                rows[name, size, done] = found[label]
        for name in EPOCHS:
            pair = {str(done): rows[name, size, done] for done in (False, True) if (name, size, done) in rows}
            if len(pair) == 2:
                apart = losses_apart(pair)
                block.check(f"{name} at {size} px: first losses, compiled as eager", apart <= FIRST_LOSSES, apart)
    measure_loaders(block, arguments.store, arguments.micro_batch, plan)
    rates: dict[str, dict[int, float]] = {name: {} for name in EPOCHS}
    for (name, size, _), row in rows.items():
        rates[name][size] = max(rates[name].get(size, 0.0), row.samples_per_second)
    minutes = {name: projected_minutes(name, of) for name, of in rates.items()}
    block.values["images_per_second"], block.values["projected_minutes"] = rates, minutes
    shown = [
        [name, *(f"{rates[name][size]:,.0f}" for size in sizes)]
        + [f"{minutes[name]:,.1f}", f"{minutes['baseline'] / minutes[name]:.2f}"]
        for name in EPOCHS
    ]
    header = ["config", *(f"{size} px" for size in sizes), "minutes to 75.9 %", "x baseline"]
    block.show("images per second, the faster of eager and compiled", header, shown)
    block.finish()


if __name__ == "__main__":
    main()
