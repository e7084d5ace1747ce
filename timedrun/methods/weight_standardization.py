"""Weight standardization: give the weights of each convolution's output channel mean 0 and variance 1."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from timedrun.methods.method import Method, NotNegative, left_out

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Standardized(nn.Module):
    """Parametrize as (W - mean) / sqrt(variance + 1e-10) over all but the first dimension; the variance is biased.

    Examples:
        >>> Standardized()(torch.tensor([[1.0, 3.0]]))
        tensor([[-1.,  1.]])
    """

    def forward(self, weight: Tensor) -> Tensor:
        dims = tuple(range(1, weight.dim()))
        variance, mean = torch.var_mean(weight, dim=dims, keepdim=True, correction=0)
        return (weight - mean) / torch.sqrt(variance + 1e-10)


class WeightStandardization(Method, name="weight_standardization"):
    """Standardize the weights in all convolutions but the last `ignore_last` (Qiao et al. 2019, arXiv 1903.10520), and
    but those of one weight a filter, which would be 0.

    The parameter that is trained gets the name `parametrizations.weight.original`. Optimizer muon needs plain weights.

    Examples:
        >>> model, change = WeightStandardization().model(nn.Sequential(nn.Conv2d(3, 8, 3)))
        >>> change
        '1 convolutions'
    """

    acting: ClassVar[tuple[type, ...]] = (Standardized,)
    ignore_last: NotNegative = 0

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = [layer for layer in model.modules() if isinstance(layer, _CONVOLUTIONS)]
        before = layers[: max(0, len(layers) - self.ignore_last)]
        several = [layer for layer in before if layer.weight[0].numel() > 1]  # a single weight less its mean is 0
        left = f"; {len(before) - len(several)} of one weight a filter left as they were" if before != several else ""
        chosen = [
            layer for layer in several if parametrize.is_parametrized(layer, "weight") or "weight" in layer._parameters
        ]
        left += left_out(set(several).difference(chosen))  # torch's former weight_norm and spectral_norm
        if not chosen:
            raise self.no_effect(f"found no convolution before the last {self.ignore_last}{left}")
        for layer in chosen:
            parametrize.register_parametrization(layer, "weight", Standardized())
        return model, f"{len(chosen)} convolutions{left}"
