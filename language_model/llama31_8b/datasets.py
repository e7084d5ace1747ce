"""Facts and checks of the data: GPT's."""

from language_model.gpt.datasets import data_digest as data_digest
from language_model.gpt.datasets import preflight as preflight
from language_model.gpt.datasets import tokens_per_sample as tokens_per_sample
