"""A script as many records are: it reads files, trains when it is run, and saves a state dict at its end."""

import argparse
import glob

import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    """Model whose forward pass returns the loss alone."""

    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs, targets):
        return nn.functional.cross_entropy(self.head(self.embed(inputs)).flatten(0, 1), targets.flatten())


def load(path):
    """Read a shard: a header of 256 int32, then tokens."""
    magic, version, count = np.fromfile(path, np.int32, 3)
    tokens = np.fromfile(path, np.uint16, offset=1024)
    assert (magic, version, count) == (20240520, 1, len(tokens)), f"{path} is not a shard of tokens"
    return tokens.astype(np.int64)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", default="data/fineweb10B/fineweb_train_*.bin")
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--output", default="state.pt")
    given = parser.parse_args(arguments)
    tokens = torch.from_numpy(np.concatenate([load(path) for path in sorted(glob.glob(given.files))]))
    model = Model(given.vocabulary)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(50):
        piece = tokens[torch.randint(len(tokens) - 33, (32, 1)) + torch.arange(33)]
        optimizer.zero_grad()
        loss = model(piece[:, :-1], piece[:, 1:])
        loss.backward()
        optimizer.step()
    print(f"step:50/50 train_loss:{loss.item():.4f}")
    torch.save({"model": model.state_dict()}, given.output)


if __name__ == "__main__":
    main()
