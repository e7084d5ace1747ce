"""Adapter of a chat model's base training."""

from base_train import base_train
from gpt import GPT, GPTConfig


def build(task):
    model = GPT(GPTConfig(sequence_len=task.context, vocab_size=task.vocabulary))
    model.init_weights()
    return model.to(task.device)


def train(model, task, shards):
    base_train(model, shards, seed=task.seed)
