"""Memory of a rank: GPT's."""

from language_model.gpt.memory import memory as memory
