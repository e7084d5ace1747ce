"""Training loop: GPT's."""

from language_model.gpt.train import train as train
