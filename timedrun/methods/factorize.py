"""Factorize: replace layers by pairs of thinner ones, whose product has a lower rank."""

from collections import Counter
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from timedrun.methods.method import Count, Method, Rule, hooked, left_out, replace_layers

RANK = Rule(lambda value: value > 0 and (value <= 1 or not value % 1), "a fraction up to 1 or a whole number")


def factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the factors A (outputs, rank) and B (rank, inputs) whose product is nearest to `weight` (outputs, inputs).

    They come from its singular value decomposition in float32; both have the roots of the singular values.

    Examples:
        >>> first, second = factors(torch.ones(4, 3), rank=1)
        >>> torch.allclose(first @ second, torch.ones(4, 3))
        True
    """
    left, values, right = torch.linalg.svd(weight.float(), full_matrices=False)
    roots = values[:rank].sqrt()
    return (left[:, :rank] * roots).to(weight.dtype), (roots[:, None] * right[:rank]).to(weight.dtype)


def rank_of(latent: float, inputs: int, outputs: int, taps: int = 1) -> int:
    """Return the rank that `latent` stands for, up to 1 a fraction of the lesser of `inputs` and `outputs`, or 0 if two
    factors would hold as many values as the one matrix, of `outputs` rows and `inputs` * `taps` columns.

    Examples:
        >>> rank_of(0.25, inputs=512, outputs=256), rank_of(0.9, inputs=512, outputs=256)
        (64, 0)
    """
    rank = int(latent if latent > 1 else latent * min(inputs, outputs))
    return rank if rank * (inputs * taps + outputs) < inputs * taps * outputs else 0


class Factorized(nn.Sequential):
    """Apply a pair of thinner layers in place of one, whose weight a model may read.

    Examples:
        >>> pair = Factorized(nn.Linear(8, 2, bias=False), nn.Linear(2, 4))
        >>> pair.weight.shape, pair(torch.rand(1, 8)).shape
        (torch.Size([4, 8]), torch.Size([1, 4]))
    """

    acted = False

    def forward(self, input: Tensor) -> Tensor:
        self.acted = True
        return super().forward(input)  # type: ignore[no-any-return, no-untyped-call]

    @property
    def weight(self) -> Tensor:
        """Return the product of the factors, shaped as the layer's weight, which torch's fused encoder layer takes."""
        self.acted = True
        first, last = (factor.get_parameter("weight") for factor in self)
        return (last.flatten(1) @ first.flatten(1)).view(len(last), *first.shape[1:])

    @property
    def bias(self) -> Tensor | None:
        return self[1].bias  # type: ignore[return-value]


@torch.no_grad()
def _factorized(layer: nn.Module, rank: int) -> Factorized:
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    to = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    last, first = factors(layer.weight.flatten(1), rank)
    biased = layer.bias is not None
    pair: Factorized
    if isinstance(layer, nn.Linear):
        pair = Factorized(
            nn.Linear(layer.in_features, rank, bias=False, **to), nn.Linear(rank, layer.out_features, biased, **to)
        )
    else:
        shape = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        thin = nn.Conv2d(layer.in_channels, rank, *shape, bias=False, padding_mode=layer.padding_mode, **to)  # type: ignore[arg-type]
        pair = Factorized(thin, nn.Conv2d(rank, layer.out_channels, 1, bias=biased, **to))  # type: ignore[arg-type]
    pair[0].weight.copy_(first.view_as(pair[0].weight))  # type: ignore[operator, arg-type]
    pair[1].weight.copy_(last.view_as(pair[1].weight))  # type: ignore[operator, arg-type]
    pair.requires_grad_(layer.weight.requires_grad)
    if layer.bias is not None:
        pair[1].bias.copy_(layer.bias).requires_grad_(layer.bias.requires_grad)  # type: ignore[operator]
    return pair.train(layer.training)


class Factorize(Method, name="factorize"):
    """Replace plain convolutions and linear layers by pairs of rank `latent_channels` or `latent_features`.

    The pairs begin as the nearest product to the layer's weights: a convolution of the same kernel to the latent
    channels and a 1x1 one, or two linear layers (Denton et al. 2014, arXiv 1404.0736).

    Examples:
        >>> model, change = Factorize(latent_features=0.25).model(nn.Sequential(nn.Linear(512, 512)))
        >>> model[0][0]
        Linear(in_features=512, out_features=128, bias=False)
    """

    acting: ClassVar[tuple[type, ...]] = (Factorized,)
    latent_channels: Annotated[float, RANK] = 0.25
    """Rank of convolutions; up to 1: a fraction of the lesser of input and output channels."""
    latent_features: Annotated[float, RANK] = 0.25
    """Rank of linear layers, likewise."""
    min_channels: Count = 256
    min_features: Count = 256

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = list(model.modules())
        holders = Counter(parameter for layer in layers for parameter in layer._parameters.values())
        ranks = {
            layer: rank
            for layer in layers
            if (rank := self._rank(layer)) and all(holders[own] == 1 for own in layer.parameters())  # ties stay
        }
        pairs = {layer: _factorized(layer, rank) for layer, rank in ranks.items()}  # a layer used twice stays one
        replace_layers(model, pairs)
        if not pairs:
            raise self.no_effect(
                f"found no plain layer with {self.min_channels} channels or {self.min_features} features that it would "
                "make smaller",
                "lower the limits or remove it from the methods",
            )
        plain = (nn.Conv2d, nn.Linear)
        rest = (layer for layer in layers if isinstance(layer, plain) and layer not in pairs)
        return model, f"{len(pairs)} layers{left_out(rest)}"

    def _rank(self, layer: nn.Module) -> int:
        """Return the rank to factorize `layer` at, 0 to leave it as it is."""
        if parametrize.is_parametrized(layer) or hooked(layer):
            return 0
        if type(layer) is nn.Conv2d and min(layer.in_channels, layer.out_channels) >= self.min_channels:
            taps = layer.kernel_size[0] * layer.kernel_size[1]
            whole = layer.groups == 1
            return rank_of(self.latent_channels, layer.in_channels, layer.out_channels, taps) if whole else 0
        if type(layer) is nn.Linear and min(layer.in_features, layer.out_features) >= self.min_features:
            return rank_of(self.latent_features, layer.in_features, layer.out_features)
        return 0
