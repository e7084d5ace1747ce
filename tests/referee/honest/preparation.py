"""A long preparation of every process and a warm-up before the clock, for a model with tied weights, recomputed
activations, tokens in an order of its own and answers of autocast to bfloat16."""

import time

import torch
from base import Bigram, fit, loss_of
from torch import nn
from torch.utils.checkpoint import checkpoint

time.sleep(0.5)


class Model(Bigram):
    def __init__(self, vocabulary):
        super().__init__(vocabulary, 48)
        self.mix = nn.Linear(48, 48)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight
        self.register_buffer("rank", torch.arange(vocabulary))

    def features(self, tokens):
        return self.mix(checkpoint(self.embedding, self.rank[tokens], use_reentrant=False))

    def forward(self, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens)


def build(task):
    model = Model(task.vocabulary)
    random = torch.randint(task.vocabulary, (4, task.context))
    loss_of(model, random, random).backward()
    model.zero_grad(set_to_none=True)
    return model


def train(model, task, shards):
    tokens = torch.from_numpy(shards[0].astype("int64"))
    order = tokens.bincount(minlength=task.vocabulary).argsort(descending=True, stable=True)
    model.rank.copy_(order.argsort())
    fit(model, task, shards)
