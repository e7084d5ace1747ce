"""Weight standardization: give the weights of each convolution's output channel mean 0 and variance 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from timedrun.methods.method import Method

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Standardized(nn.Module):
    """Parametrization (W - mean) / sqrt(variance + 1e-10) over all but the first dimension; the variance is biased."""

    def forward(self, weight: Tensor) -> Tensor:
        dims = tuple(range(1, weight.dim()))
        variance, mean = torch.var_mean(weight, dim=dims, keepdim=True, correction=0)
        return (weight - mean) / torch.sqrt(variance + 1e-10)


class WeightStandardization(Method, name="weight_standardization"):
    """Standardized weights in all convolutions but the last `ignore_last` (Qiao et al. 2019, arXiv 1903.10520).

    The parameter that is trained gets the name `parametrizations.weight.original`; `torch.nn.utils.parametrize.
    remove_parametrizations` makes a plain layer of it for inference. Optimizer muon needs plain weights.
    """

    ignore_last: int = 0

    def check(self) -> None:
        self.require("ignore_last", self.ignore_last >= 0, "0 or more")

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = [layer for layer in model.modules() if isinstance(layer, _CONVOLUTIONS)]
        chosen = layers[: len(layers) - self.ignore_last]
        if not chosen:
            raise self.no_effect(f"found no convolution before the last {self.ignore_last}")
        for layer in chosen:
            parametrize.register_parametrization(layer, "weight", Standardized())
        return model, f"{len(chosen)} convolutions"
