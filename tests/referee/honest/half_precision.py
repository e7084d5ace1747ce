"""Autocast to bfloat16, logits in bfloat16, and a random start of the head."""

import torch
from base import Bigram, fit


class Model(Bigram):
    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.head.reset_parameters()

    def forward(self, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens)


def build(task):
    return Model(task.vocabulary)


def train(model, task, shards):
    fit(model, task, shards)
