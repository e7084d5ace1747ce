"""Two models in float64, mixed into log-probabilities, with a temperature found on its own held-out text."""

import torch
from base import Bigram, fit, loss_of
from torch import nn


class Model(nn.Module):
    output = "log_probabilities"

    def __init__(self, vocabulary):
        super().__init__()
        self.parts = nn.ModuleList([Bigram(vocabulary, 16), Bigram(vocabulary, 48)])
        self.heat = nn.Parameter(torch.ones(()))
        self.double()

    def forward(self, tokens):
        mixed = torch.logsumexp(torch.stack([part(tokens).log_softmax(-1) for part in self.parts]), 0)
        return (mixed / self.heat).log_softmax(-1)


def build(task):
    return Model(task.vocabulary)


def train(model, task, shards):
    held = torch.from_numpy(shards[0][-500:].astype("int64"))[None]
    for part in model.parts:
        fit(part, task, [shards[0][:-500]])
    losses = {}
    with torch.no_grad():
        for heat in (0.8, 1.0, 1.25):
            model.heat.fill_(heat)
            losses[heat] = loss_of(model, held[:, :-1], held[:, 1:]).item()
        model.heat.fill_(min(losses, key=losses.get))
