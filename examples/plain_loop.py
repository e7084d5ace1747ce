"""Train a small network on scikit-learn's digits with methods in a plain PyTorch loop."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from timedrun.methods import EMA, BlurPool, ChannelsLast, LabelSmoothing, ProgressiveResizing, stack

EPOCHS, CLASSES = 10, 10


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target))
    training, validation = torch.utils.data.random_split(data, (1437, 360))
    loader = DataLoader(training, batch_size=64, shuffle=True)
    images, labels = (torch.stack(part) for part in zip(*validation, strict=True))

    speed = stack(
        ChannelsLast(),
        BlurPool(),
        ProgressiveResizing(start=0.75, delay=0.2, increment=2),
        LabelSmoothing(),
        EMA(half_life=20, update_interval=2),
    )
    model = speed.model(network())  # before the optimizer, torch.compile and DistributedDataParallel
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step, steps = 0, EPOCHS * len(loader)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            speed.before_step(model, step, step / steps)
            inputs, targets = speed.batch(inputs, targets, CLASSES)
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            speed.after_step(model)
            step += 1

    def accuracy() -> float:
        with torch.no_grad():
            return (model(images).argmax(1) == labels).float().mean().item()

    speed.verify()  # raises NoEffect if a method changed nothing
    print(*speed.report, sep="\n")
    print(f"accuracy of the training weights {accuracy():.4f}")
    with speed.evaluation(model):
        averaged = accuracy()
        torch.save(model.state_dict(), "digits.pt")  # the averaged weights
    print(f"accuracy of the averaged weights {averaged:.4f}, saved in digits.pt")


if __name__ == "__main__":
    main()
