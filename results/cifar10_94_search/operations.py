"""Print the operations of a run of CIFAR-10's `94_methods`, and of other courses of its image size, as torch counts
those of the network for one image of each size. A multiply-add is two operations."""

from collections import Counter

import torch
from torch.utils.flop_counter import FlopCounterMode

from image_classification.configs import cifar10_94_methods
from image_classification.model import build_model
from timedrun.methods import TTA, ProgressiveResizing, Whitening
from timedrun.methods.whitening import first_convolution

CONFIG = cifar10_94_methods()
METHODS = {type(method): method for method in CONFIG.methods}
STEPS, IMAGES, EVALUATED, VIEWS = 9 * 25, 2000, 10_000, 6
COURSES = {
    "crop24 and 94_methods": METHODS[ProgressiveResizing],
    "crop26": ProgressiveResizing(start=0.8125, delay=0.53, finetune=0.15, increment=2, interpolation="crop"),
    "crop28": ProgressiveResizing(start=0.875, delay=0.88, finetune=0.12, interpolation="crop"),
}
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


evaluation = operations(32, bias=False, trained=False) * EVALUATED * (1 + METHODS[TTA].share * VIEWS) / 1e15
print(f"evaluation, {METHODS[TTA].share:.0%} of the images in six views: {evaluation:.4f} PFLOP")
for name, course in COURSES.items():
    at = [step / STEPS for step in range(STEPS)]
    steps = Counter((side, p < METHODS[Whitening].bias_end) for p, side in zip(at, course.sizes(32, at), strict=True))
    training = sum(count * IMAGES * operations(side, bias=early) for (side, early), count in steps.items()) / 1e15
    print(f"{name}: training {training:.4f} PFLOP")
