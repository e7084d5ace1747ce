"""Tokens of its own order, recomputed activations, tied weights, a padded vocabulary, and logits with a soft cap."""

import torch
from base import Bigram, fit
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(Bigram):
    def __init__(self, vocabulary):
        super().__init__(vocabulary + 16, 48)
        self.vocabulary, self.mix = vocabulary, nn.Linear(48, 48)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight
        self.register_buffer("rank", torch.arange(vocabulary))

    def features(self, tokens):
        return self.mix(checkpoint(self.embedding, self.rank[tokens], use_reentrant=False))

    def forward(self, tokens):
        return 15 * (super().forward(tokens)[..., : self.vocabulary] / 15).tanh()


def build(task):
    return Model(task.vocabulary)


def train(model, task, shards):
    tokens = torch.from_numpy(shards[0].astype("int64"))
    order = tokens.bincount(minlength=task.vocabulary).argsort(descending=True, stable=True)
    model.rank.copy_(order.argsort())
    fit(model, task, shards)
