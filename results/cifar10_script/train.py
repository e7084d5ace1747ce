"""Train a small network on CIFAR-10 in the manner of the airbench speed runs, and print its accuracy after each epoch.

    python train.py FOLDER [--lr LR] [--momentum MOMENTUM] [--smoothing SMOOTHING] [--epochs EPOCHS]

FOLDER holds CIFAR-10's binary batches. The script knows nothing of timedrun; the seed is the variable SEED.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, WIDTHS = 512, (24, 48, 96)


def read(*files: Path) -> tuple[Tensor, Tensor]:
    """Return images of shape (N, 3, 32, 32), scaled to mean 0 and deviation 1, and labels of shape (N,)."""
    data = bytearray().join(file.read_bytes() for file in files)
    rows = torch.frombuffer(data, dtype=torch.uint8).view(-1, 3073)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    images = (images - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    return images.contiguous(memory_format=torch.channels_last), rows[:, 0].long()


def augmented(images: Tensor) -> Tensor:
    """Return the batch, each half flipped by chance, all moved by up to two pixels."""
    flipped = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)
    top, left = torch.randint(0, 5, (2,)).tolist()
    return F.pad(flipped, (2, 2, 2, 2), mode="reflect")[:, :, top : top + 32, left : left + 32]


def network() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 2), nn.GELU()]
    channels = 16
    for width in WIDTHS:
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.MaxPool2d(2)]
        layers += [nn.BatchNorm2d(width), nn.GELU()]
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.GELU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--momentum", type=float, default=0.85)
    parser.add_argument("--smoothing", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    images, labels = read(*(arguments.folder / f"data_batch_{number}.bin" for number in range(1, 6)))
    test_images, test_labels = read(arguments.folder / "test_batch.bin")
    model = network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), arguments.lr, momentum=arguments.momentum, nesterov=True, weight_decay=5e-4
    )
    steps = arguments.epochs * (len(images) // BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, arguments.lr, total_steps=steps, pct_start=0.23, anneal_strategy="linear", cycle_momentum=False
    )
    print("training starts", flush=True)
    start = time.perf_counter()
    for epoch in range(1, arguments.epochs + 1):
        model.train()
        for batch in torch.randperm(len(images)).split(BATCH)[: len(images) // BATCH]:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(augmented(images[batch]))
            F.cross_entropy(outputs.float(), labels[batch], label_smoothing=arguments.smoothing).backward()
            optimizer.step()
            rate.step()
            optimizer.zero_grad()
        model.eval()
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            found = torch.cat([model(part).argmax(1) for part in test_images.split(2000)])
        accuracy = (found == test_labels).float().mean().item()
        print(f"epoch {epoch} accuracy {accuracy:.4f} time {time.perf_counter() - start:.2f}s", flush=True)


if __name__ == "__main__":
    main()
