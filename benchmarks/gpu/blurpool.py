"""BlurPool computed in three ways: training steps of ResNet-50's methods, eager and compiled.

Usage: python -m benchmarks.gpu.blurpool --out results/gpu/DATE-GPU [--size 224] [--micro-batch 256] [--tiny]

The blur is a depthwise convolution (timedrun's in eager code), a sum of nine slices (timedrun's in compiled code on
CUDA), or two average pools of 2x2 pixels. First outputs and gradients of the three are compared in fp64, and loss and
gradients of each config as timed with those in fp32. Then steps are timed in turns, with those without BlurPool.

Needs the packages of pyproject.toml's `dependencies`; carry those that a machine without a network lacks
(see bert_ladder). Compiling takes a minute a config.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.block import Block, parser
from benchmarks.gpu.resnet50 import TINY_SIZE, compare_as_timed, resident
from image_classification.configs import ImageRunConfig
from timedrun.analysis.profiled_run import StepPlan
from timedrun.benchmark import find
from timedrun.methods import BlurPool
from timedrun.methods.blurpool import blur_by_slices

Blur = Callable[..., Tensor]
SAME = 1e-12
"""Largest relative difference between two ways in fp64."""


def by_convolution(inputs: Tensor, kernel: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    """Convolve each channel."""
    weight = kernel.to(inputs.dtype).expand(inputs.shape[1], 1, 3, 3)
    return F.conv2d(inputs, weight, stride=stride, padding=1, groups=inputs.shape[1])


def by_slices(inputs: Tensor, kernel: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    """Add nine shifted slices."""
    return blur_by_slices(inputs, stride)


def by_pools(inputs: Tensor, kernel: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    """Pool twice: [1 1] / 2, convolved with itself, is [1 2 1] / 4 of the blur."""
    return F.avg_pool2d(F.avg_pool2d(inputs, 2, 1, padding=1), 2, stride)


class BlurByConvolution(BlurPool):
    """BlurPool with one way to blur, for this process."""

    way = staticmethod(by_convolution)

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        importlib.import_module("timedrun.methods.blurpool").blur = self.way  # type: ignore[attr-defined]
        return super().model(model)


class BlurBySlices(BlurByConvolution):
    way = staticmethod(by_slices)


class BlurByPools(BlurByConvolution):
    way = staticmethod(by_pools)


WAYS: dict[str, type[BlurPool]] = {
    "convolution": BlurByConvolution,
    "nine slices": BlurBySlices,
    "two average pools": BlurByPools,
}


def with_blur(config: ImageRunConfig, way: type[BlurPool] | None) -> ImageRunConfig:
    """Return `config` with its BlurPool computed in a way, or without it."""
    methods = [way() if isinstance(method, BlurPool) and way else method for method in config.methods]
    return replace(config, methods=tuple(one for one in methods if way or not isinstance(one, BlurPool)))


def compare_ways(block: Block) -> None:
    """Check outputs and gradients of the three ways in fp64."""
    row = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64, device=block.device) / 4
    kernel, generator = torch.outer(row, row), torch.Generator().manual_seed(1)
    inputs = torch.rand(2, 16, 9, 8, generator=generator, dtype=torch.float64).to(block.device)
    for stride in (1, 2):
        computed = {}
        for name, way in (("convolution", by_convolution), ("nine slices", by_slices), ("two average pools", by_pools)):
            leaf = inputs.clone().requires_grad_()
            output = way(leaf, kernel, stride)
            output.square().sum().backward()  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            computed[name] = torch.cat([output.detach().flatten(), leaf.grad.flatten()])
        wanted = computed.pop("convolution")
        apart = {name: float((one - wanted).norm() / wanted.norm()) for name, one in computed.items()}
        block.check(f"the ways agree at stride {stride}", max(apart.values()) <= SAME, apart)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", type=int, default=224, help="pixels per side")
    options.add_argument("--micro-batch", type=int, default=256)
    arguments = options.parse_args()
    block = Block("blurpool", arguments)
    compare_ways(block)
    size = TINY_SIZE if block.tiny else arguments.size
    configs = {}
    for compiled in (False,) if block.tiny else (False, True):  # tiny ones are never compiled
        config = resident("methods", size, arguments.micro_batch, block.tiny, compiled=compiled)
        for name, way in {**WAYS, "without BlurPool": None}.items():
            configs[f"{name}{', compiled' * compiled}"] = with_blur(config, way)
    for name, config in configs.items():
        compare_as_timed(block, name, config)
    chunks, chunk = (2, 1) if block.tiny else (5, 3)
    plan = StepPlan(positions=(0.5,), chunks=chunks, chunk=chunk, skip=2, evaluate=False)
    block.measure(f"BlurPool at {size} px", find("image_classification"), configs, plan=plan, counted=1)
    block.finish()


if __name__ == "__main__":
    main()
