"""Preparation of text: GPT's."""

from language_model.gpt.prepare import prepare as prepare
