"""Usual ways to a step, one after another, ended by its own clock: optimizers, averages, traces, functions."""

import copy
import time

import torch
from base import Bigram, batches, fit, loss_of
from torch import nn
from torch.func import functional_call, grad

F = nn.functional


class Model(Bigram):
    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.embedding = nn.Embedding(vocabulary, 32, sparse=True)


def build(task):
    return Model(task.vocabulary)


def several_with_sparse_gradients(model, task, shards):
    optimizers = (
        torch.optim.SparseAdam([model.embedding.weight], 0.05),
        torch.optim.SGD(model.head.parameters(), 1, 0.9),
    )
    for number, (inputs, targets) in enumerate(batches(task, shards, 20)):
        length = 4 + number * 28 // 19  # rows that grow longer
        for part in range(4):  # accumulated gradients
            rows = slice(part, None, 4)
            (loss_of(model, inputs[rows, :length], targets[rows, :length]) / 4).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    model.embedding = nn.Embedding.from_pretrained(model.embedding.weight.detach(), freeze=False)


def averages(model, task, shards):
    average, moving = torch.optim.swa_utils.AveragedModel(model), copy.deepcopy(model)
    for _ in range(2):
        fit(model, task, shards, 15, optimizer=torch.optim.AdamW(model.parameters(), 0.05))
        average.update_parameters(model)
        with torch.no_grad():
            for kept, weight in zip(moving.parameters(), model.parameters(), strict=True):
                kept.lerp_(weight, 0.2)
    model.load_state_dict(average.module.state_dict())


def all_tokens_at_once(model, task, shards):
    tokens = torch.from_numpy(shards[0][: len(shards[0]) // 2].astype("int64"))[None]  # half of the data
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        return loss

    optimizer.step(closure)


def gradients_of_functions(model, task, shards):
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights, inputs, targets):
        return F.cross_entropy(functional_call(model, weights, inputs).flatten(0, 1), targets.flatten())

    for inputs, targets in batches(task, shards, 5):
        found = grad(loss)(weights, inputs, targets)
        weights = {name: weights[name] - found[name] for name in weights}
    model.load_state_dict(weights)


def train(model, task, shards):
    several_with_sparse_gradients(model, task, shards)
    averages(model, task, shards)
    all_tokens_at_once(model, task, shards)
    gradients_of_functions(model, task, shards)
    scripted = torch.jit.trace(model, torch.zeros(2, task.context).long())
    until = time.monotonic() + min(0.1, 0.5 * task.budget_seconds)
    while time.monotonic() < until:
        fit(scripted, task, shards, 10)
    fit(scripted, task, shards)
    other = Bigram(task.vocabulary)  # a new module with the same weights
    other.load_state_dict(scripted.state_dict())
    return other
