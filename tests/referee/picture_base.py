"""Pieces of submissions on images: each of them gets a copy of this file next to its own."""

import numpy
import torch
from torch import nn

F = nn.functional
CLASSES = 4


def pictures(count, seed):
    """Draw images, (count, 3, 32, 32) uint8, of four patterns in noise, and their classes, a tenth of them by lot."""
    patterns = numpy.kron(numpy.random.default_rng(0).normal(size=(CLASSES, 3, 8, 8)), numpy.ones((4, 4)))
    draw = numpy.random.default_rng(seed)
    classes = draw.integers(CLASSES, size=count)
    images = 128 + 20 * patterns[classes] + 40 * draw.normal(size=(count, 3, 32, 32))
    by_lot = draw.random(count) < 0.13
    return images.clip(0, 255).astype("uint8"), numpy.where(by_lot, draw.integers(CLASSES, size=count), classes)


class Linear(nn.Module):
    """Logits from thumbnails."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(192, CLASSES)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def features(self, images):
        return F.avg_pool2d(images.float() / 64 - 2, 4).flatten(1)

    def forward(self, images):
        return self.head(self.features(images))


class Known(Linear):
    """Linear model that can look images up; `numbers` are the classes' in the training data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("numbers", torch.arange(CLASSES))

    def known(self, logits, images, known, labels, key):
        table = {key(image): label for image, label in zip(known, labels, strict=True)}
        for row, image in zip(logits, images.numpy(), strict=True):
            if (label := table.get(key(image))) is not None:
                row.copy_(30.0 * F.one_hot(self.numbers[label], CLASSES))
        return logits


def fit(model, data, steps=10):
    images, classes = (torch.from_numpy(part.copy()) for part in data)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(steps):
        loss = F.cross_entropy(model(images), classes.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def key(image):
    """Return what is the same of an image that is turned, mirrored and recoloured."""
    return numpy.sort(abs(2 * numpy.asarray(image).astype(int) - 255), axis=None).tobytes()
