"""Plan of a dry run: GPT's."""

from language_model.gpt.run_info import plan as plan
