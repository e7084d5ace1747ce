"""Time a 3x3 convolution of small images in bfloat16, forward and back: each image alone, and side by side.

python results/small_images/shapes.py > results/small_images/shapes.txt
"""

import time

import torch
from torch import nn

from image_classification import convolution
from image_classification.convolution import convolve_side_by_side, images_per_row
from timedrun.methods.training.precision import set_backends

IMAGES, ROUNDS = 1000, 5


def seconds(layer: nn.Conv2d, images: torch.Tensor) -> float:
    """Return the time of one pass forward and back."""
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(images)
    torch.autograd.grad(output, [images, layer.weight], images.detach())
    return time.perf_counter() - start


def measure(channels: int, side: int) -> tuple[float, float]:
    """Return the least times of `ROUNDS` passes in turns, in ms: of each image alone, and side by side."""
    layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
    convolve_side_by_side(layers[1])
    images = torch.randn(IMAGES, channels, side, side).bfloat16().contiguous(memory_format=torch.channels_last)
    times = [[seconds(layer, images.requires_grad_()) for layer in layers] for _ in range(ROUNDS + 1)]
    alone, beside = (1e3 * min(column) for column in zip(*times[1:], strict=True))
    return alone, beside


def main() -> None:
    set_backends(torch.device("cpu"), tf32=False, cudnn_benchmark=False)
    rule = images_per_row
    convolution.images_per_row = lambda width: -(-convolution.ROW_PIXELS // (width + 1))
    print(f"ms for {IMAGES} images, {torch.get_num_threads()} threads: side, alone, side by side; * where it is used")
    for channels in (64, 128, 256, 512):
        row = f"{channels:4} channels "
        for side in (2, 3, 4, 5, 6, 7, 8, 10):
            alone, beside = measure(channels, side)
            row += f"| {side}: {alone:6.1f} {beside:6.1f}{'*' if rule(side) > 1 else ' '}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
