"""Gated linear units: a feed-forward layer whose hidden values are multiplied by a second linear map of its input."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.method import Method


class GatedIntermediate(nn.Module):
    """Apply activation(W1 x) * (W2 x), without biases: (..., hidden) -> (..., features).

    Examples:
        >>> GatedIntermediate(hidden=8, features=32, activation=nn.GELU())(torch.rand(2, 8)).shape
        torch.Size([2, 32])
    """

    def __init__(self, hidden: int, features: int, activation: Any) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, features, bias=False)
        self.up = nn.Linear(hidden, features, bias=False)
        self.activation = activation

    def forward(self, hidden_states: Tensor) -> Tensor:
        gated: Tensor = self.activation(self.gate(hidden_states)) * self.up(hidden_states)
        return gated


class GatedLinearUnits(Method, name="gated_linear_units"):
    """Gate the feed-forward layers in transformers' BERT and RoBERTa (Shazeer 2020, arXiv 2002.05202), with the model's
    own activation. Dropout stays after the output map, where transformers has it; MosaicML Composer's is before.

    Examples:
        >>> GatedLinearUnits(iso_parameters=True).model(nn.Linear(4, 2))
        Traceback (most recent call last):
            ...
        timedrun.methods.method.NoEffect: gated_linear_units found no feed-forward layer of transformers' BERT or ...
    """

    acting: ClassVar[tuple[type, ...]] = (GatedIntermediate,)
    iso_parameters: bool = False
    """Use 2/3 of the hidden features, rounded to a multiple of 8, for about as many parameters as before."""

    @torch.no_grad()
    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = [
            layer
            for layer in model.modules()
            if hasattr(layer, "output") and hasattr(getattr(layer, "intermediate", None), "intermediate_act_fn")
        ]
        if not layers:
            raise self.no_effect("found no feed-forward layer of transformers' BERT or RoBERTa")
        for layer in layers:
            old: Any = layer.intermediate
            features, hidden = old.dense.weight.shape
            width = max(8, round(features * 2 / 3 / 8) * 8) if self.iso_parameters else features
            to = {"device": old.dense.weight.device, "dtype": old.dense.weight.dtype}
            new = GatedIntermediate(hidden, width, old.intermediate_act_fn).to(**to)
            deviation = float(old.dense.weight.std()) if not old.dense.weight.is_meta else 0.02
            for linear in (new.gate, new.up):
                nn.init.normal_(linear.weight, std=deviation)
            layer.intermediate = new
            if width != features:
                output: Any = layer.output
                narrow = nn.Linear(width, len(output.dense.weight), **to)
                nn.init.normal_(narrow.weight, std=deviation)
                nn.init.zeros_(narrow.bias)
                output.dense = narrow
        return model, f"{len(layers)} feed-forward layers"
