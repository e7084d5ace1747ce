"""Submission to the referee's contract of images: a small network that learns part of CIFAR-10 in some 20 s of a CPU.

timedrun referee examples/cifar_record.py --classes 10 --train FOLDER --validation FOLDER --target 0.5
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPOCHS, BATCH, RATE, IMAGES = 4, 100, 0.01, 10_000


class Network(nn.Sequential):
    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = []
        for channels, outputs, size, stride in ((3, 24, 4, 2), (24, 48, 3, 1), (48, 96, 3, 1)):
            convolution = nn.Conv2d(channels, outputs, size, stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(96 * 4, classes))
        nn.init.zeros_(self[-1].weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of images, (N, 3, 32, 32) uint8."""
        return super().forward(images.float() / 64 - 2)


def build(task) -> nn.Module:
    images = torch.randint(256, (BATCH, *task.shape), dtype=torch.uint8, device=task.device)
    Network(task.classes).to(task.device)(images).sum().backward()  # warm-up, before the clock
    return Network(task.classes).to(task.device)


def train(model, task, data) -> None:
    images, classes = (torch.from_numpy(part[:IMAGES].copy()).to(task.device) for part in data)
    steps = EPOCHS * len(images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1)
    order = torch.cat([torch.randperm(len(images)) for _ in range(EPOCHS)]).view(steps, BATCH)
    for step, batch in enumerate(order):
        down, right, mirrored = torch.randint(5, (3,)).tolist()
        shifted = F.pad(images[batch].float(), (2, 2, 2, 2), "replicate")[..., down : down + 32, right : right + 32]
        logits = model(shifted.flip(3) if mirrored % 2 else shifted)
        loss = F.cross_entropy(logits, classes[batch].long(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {steps}: loss {loss.item():.4f}")
