"""Time the network of CIFAR-10's `94_methods` on 2,000 images, forward and back, in turns: each image alone where it is
convolved, and small ones side by side.

python results/small_images/network.py > results/small_images/network.txt
"""

import time
from statistics import median

import torch
import torch.nn.functional as F

from image_classification.configs import cifar10_94_methods
from image_classification.convolution import convolve_side_by_side
from image_classification.model import build_model
from timedrun.methods.training.precision import set_backends

ROUNDS = 8


def main() -> None:
    set_backends(torch.device("cpu"), tf32=False, cudnn_benchmark=False)
    config = cifar10_94_methods()
    models = [build_model(config.model, seed=1).to(memory_format=torch.channels_last) for _ in range(2)]  # type: ignore[call-overload]
    convolve_side_by_side(models[1])
    images = torch.randn(config.global_batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    classes = torch.randint(10, (len(images),))
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS + 1):
        for model, seconds in zip(models, times, strict=True):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(images)
            F.cross_entropy(outputs.float(), classes).backward()  # type: ignore[no-untyped-call]
            seconds.append(time.perf_counter() - start)
            model.zero_grad()
    print(f"ms for {len(images)} images, {torch.get_num_threads()} threads, {ROUNDS} turns")
    for name, seconds in zip(("alone", "side by side"), times, strict=True):
        print(f"{name:12} " + " ".join(f"{1000 * value:6.0f}" for value in seconds[1:]))
    ratios = [alone / beside for alone, beside in zip(times[0][1:], times[1][1:], strict=True)]
    print(f"ratio {min(ratios):.2f} to {max(ratios):.2f}, median {median(ratios):.2f}")


if __name__ == "__main__":
    main()
