"""Print the operations of a run of CIFAR-10's `94_methods`, and of other courses of its image size, as torch counts
those of the network for one image of each size. A multiply-add is two operations."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from image_classification.configs import cifar10_94_methods
from image_classification.model import build_model
from timedrun.methods import TTA, InfoBatch, ProgressiveResizing, Whitening
from timedrun.methods.whitening import first_convolution

CONFIG = cifar10_94_methods()
METHODS = {type(method): method for method in CONFIG.methods}
BATCH, STEPS, EVALUATED, VIEWS = CONFIG.global_batch, 50_000 // CONFIG.global_batch, 10_000, 6
model = build_model(CONFIG.model, seed=1)
stem = first_convolution(model)
stem.weight.requires_grad_(False)


def operations(side: int, *, bias: bool, trained: bool = True) -> int:
    stem.bias.requires_grad_(bias)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(trained):
        outputs = model(torch.rand(1, 3, side, side))
        if trained:
            outputs.sum().backward()
    return counter.get_total_flops()


def training(epochs: int, course: ProgressiveResizing, selection: InfoBatch | None = None) -> float:
    """Return the PFLOP of the forward and backward passes of `epochs`."""
    total = 0
    at = [step / (epochs * STEPS) for step in range(epochs * STEPS)]
    for progress, side in zip(at, course.sizes(32, at), strict=True):
        left_out = int(selection.rate * int(selection.easy * BATCH)) if selection is not None else 0
        acts = selection is not None and selection.start <= progress < selection.end
        images = BATCH - left_out * acts
        total += images * COUNTED[side, progress < METHODS[Whitening].bias_end]
    return total / 1e15


COUNTED = {(side, bias): operations(side, bias=bias) for side in range(20, 33, 2) for bias in (False, True)}
of_views = operations(32, bias=False, trained=False) * EVALUATED * VIEWS / 1e15
once = of_views / VIEWS
share = METHODS[TTA].share
print(f"evaluation, {share:.0%} of the images in six views: {once + share * of_views:.4f} PFLOP")
course, selection = METHODS[ProgressiveResizing], METHODS.get(InfoBatch)
print(f"94_methods: training {training(CONFIG.schedule.epochs, course, selection):.4f} PFLOP")
print(f"crop24, 9 epochs without info_batch: training {training(9, course):.4f} PFLOP")
print(f"info1, info2: training {training(10, course, InfoBatch(start=0.35)):.4f} PFLOP")
for name, values in {
    "crop26": {"start": 0.8125, "delay": 0.53, "finetune": 0.15, "increment": 2},
    "crop28": {"start": 0.875, "delay": 0.88, "finetune": 0.12},
    "late24": {"start": 0.75, "delay": 0.45, "finetune": 0.2},
    "crop20": {"start": 0.625, "delay": 0.15, "finetune": 0.25},
}.items():
    print(f"{name}: training {training(9, ProgressiveResizing(interpolation='crop', **values)):.4f} PFLOP")
