"""Time the weight gradient of a 3x3 convolution in bfloat16: by oneDNN's kernel, and by a product of unfolded patches.

python results/unfolded_gradient/shapes.py > results/unfolded_gradient/shapes.txt
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from image_classification.convolution import _Convolution, unfolded_is_faster
from timedrun.training.precision import set_backends

IMAGES, ROUNDS = 1000, 5


def fastest(function: Callable[[], object]) -> float:
    """Return the least time of `ROUNDS` calls after one more, in ms."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[1:])


def measure(channels: int, side: int) -> tuple[float, float]:
    """Return the times of oneDNN's kernel and of the product."""
    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).bfloat16().to(memory_format=torch.channels_last)
    images = torch.randn(IMAGES, channels, side, side).bfloat16().contiguous(memory_format=torch.channels_last)
    slopes = torch.randn_like(images)
    outputs = nn.functional.conv2d(images, layer.weight, padding=1), _Convolution.apply(images, layer.weight)
    kernel, product = (
        fastest(lambda output=output: torch.autograd.grad(output, layer.weight, slopes, retain_graph=True))
        for output in outputs
    )
    return kernel, product


def main() -> None:
    set_backends(torch.device("cpu"), tf32=False, cudnn_benchmark=False)
    print(f"ms for {IMAGES} images, {torch.get_num_threads()} threads: side, oneDNN, product; * where it is used")
    for channels in (64, 128, 256, 512):
        row = f"{channels:4} channels "
        for side in (2, 3, 4, 5, 6, 7, 8, 10):
            kernel, product = measure(channels, side)
            used = "*" if unfolded_is_faster(side, side, channels) else " "
            row += f"| {side}: {kernel:5.1f} {product:5.1f}{used}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
