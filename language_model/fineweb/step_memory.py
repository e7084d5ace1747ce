"""A step for the estimate of its memory: GPT's."""

from language_model.gpt.step_memory import build_step as build_step
from language_model.gpt.step_memory import sharded_layers as sharded_layers
