"""Train a small network on scikit-learn's digits and print its accuracy: a script that knows nothing of timedrun, to be
raced by `timedrun race command`."""

import argparse
import os
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "0")))
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    digits = load_digits()
    images, labels = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    training, validation = order[:1437], order[1437:]
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=arguments.lr, momentum=arguments.momentum)
    print("training starts")
    start = time.perf_counter()
    for epoch in range(1, arguments.epochs + 1):
        network.train()
        for batch in training[torch.randperm(len(training))].split(32):
            loss = F.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            accuracy = (network(images[validation]).argmax(1) == labels[validation]).float().mean().item()
        print(f"epoch {epoch} accuracy {accuracy:.4f} time {time.perf_counter() - start:.3f}s")


if __name__ == "__main__":
    main()
