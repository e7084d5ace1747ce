"""Kept BERT models: the network of a run, and its weights as a folder of transformers."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from language_model.build import build_model
from language_model.configs import BertRunConfig
from language_model.encoder import Bert, shapes
from language_model.model import ReferenceBert
from language_model.weights import to_theirs
from timedrun.methods import stack
from timedrun.methods.training.initialisation import on_meta_device


def model(config: BertRunConfig) -> nn.Module:
    """Return the network of a run with its methods, whose attention is chosen for the device on which it runs."""
    return stack(*config.methods).model(build_model(config, torch.device("cpu")))


def export(config: BertRunConfig, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write `folder`/transformers, which BertForMaskedLM.from_pretrained reads, unless a method changed the layers."""
    reference, own = ReferenceBert(config.architecture, "sdpa"), config.implementation == "timedrun"
    with on_meta_device():
        plain = Bert(config.architecture, config.speed) if own else reference
    if weights.keys() != plain.state_dict().keys():
        return
    if own:
        reference.load_weights(to_theirs(weights, shapes(config.architecture)))
    else:
        reference.load_state_dict(weights)
    reference.model.save_pretrained(folder / "transformers")
