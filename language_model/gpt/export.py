"""Kept GPT models: the network of a run, and the weights of a GPT-2 as a folder of transformers."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from language_model.gpt.model import Gpt2, build_model
from language_model.gpt.run_config import GptRunConfig
from timedrun.methods import stack


def model(config: GptRunConfig) -> nn.Module:
    """Return the network of a run with its methods."""
    return stack(*config.methods).model(build_model(config.model, config.seed))


def export(config: GptRunConfig, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write `folder`/transformers, which GPT2LMHeadModel.from_pretrained reads, if the run trained that model and no
    method changed its layers."""
    if config.model.implementation != "gpt2":
        return
    network = Gpt2(config.model)
    if weights.keys() == network.state_dict().keys():
        network.load_state_dict(weights)
        network.gpt2.save_pretrained(folder / "transformers")
