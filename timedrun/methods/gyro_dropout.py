"""Gyro dropout: dropout that trains a fixed set of sub-networks, a few of them at a time."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from timedrun.methods.method import Hooks, Method, Position, Probability, hooked, left_out, unwrapped
from timedrun.methods.training.sampling import stream_seed


class GyroDropoutLayer(nn.Dropout):
    """Drop the features of (N, F), (N, L, F), (N, H, H, F) or the channels of (N, C, H, W) by given masks.

    Attention keeps ordinary dropout of `p`: code that only reads `p`, and probabilities (rows that sum to 1). These
    have no features: whole heads or keys would be dropped.

    Examples:
        >>> layer = GyroDropoutLayer(p=0.1, rate=0.5)
        >>> layer.choose(seed=0, chosen=(3, 7))  # one mask for each half of a batch
        >>> layer.mask(3, features=8).shape
        torch.Size([8])
    """

    def __init__(self, p: float, rate: float, inplace: bool = False) -> None:
        super().__init__(p, inplace)
        self.rate = rate
        self.acted = self._attention = False
        self.seed = 0
        self.chosen: tuple[int, ...] = (0,)
        self._masks: Tensor | None = None

    def choose(self, seed: int, chosen: tuple[int, ...]) -> None:
        """Use the masks numbered `chosen` of the set that `seed` stands for; a batch is divided among them."""
        if (seed, chosen) != (self.seed, self.chosen):
            self.seed, self.chosen, self._masks = seed, chosen, None

    def mask(self, number: int, features: int) -> Tensor:
        """Return mask `number` over `features`: 1 where a feature is kept."""
        generator = torch.Generator().manual_seed(stream_seed(self.seed, "mask", number))
        return (torch.rand(features, generator=generator) >= self.rate).float()

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self._attention or input.dim() < 2:
            return super().forward(input)
        images = input.dim() == 4 and not input.shape[1] == input.shape[2] != input.shape[3]
        features = input.shape[1 if images else -1]
        mask = self._masks
        if mask is None or (mask.shape[1], mask.device, mask.dtype) != (features, input.device, input.dtype):
            self._attention = self._is_attention(input)
            if self._attention:
                return super().forward(input)
            self._masks = self._selected(features).to(input.device, input.dtype)
            mask = self._masks
        rows = torch.arange(len(input), device=input.device) * len(mask) // len(input)
        shape = (features, 1, 1) if images else (*[1] * (input.dim() - 2), features)
        return input * mask[rows].view(-1, *shape) / (1 - self.rate)

    @_disable_dynamo  # as torch.compiler.disable, which imports Dynamo at once; called once in many steps
    def _selected(self, features: int) -> Tensor:
        self.acted = True
        return torch.stack([self.mask(number, features) for number in self.chosen])

    @_disable_dynamo
    def _is_attention(self, input: Tensor) -> bool:
        return input.dim() > 2 and not input.is_meta and bool((input.float().sum(-1) - 1).abs().max() < 0.02)


class _GyroDropoutHooks(Hooks):
    _method: GyroDropout
    saved = ("acted",)
    done = "{hooks.acted} of them with masks, others (of attention, not called) as before"
    acted = 0
    _layers: list[GyroDropoutLayer] | None = None

    def before_step(self, model: nn.Module, at: Position) -> None:
        if self._layers is None:
            self._layers = [layer for layer in unwrapped(model).modules() if isinstance(layer, GyroDropoutLayer)]
        chosen = self._method.chosen(at)
        for place, layer in enumerate(self._layers):
            layer.choose(stream_seed(at.seed, self._method.name, place), chosen)

    def after_step(self, model: nn.Module, step: int) -> None:
        self.acted = self.acted or sum(layer.acted for layer in self._layers or ())


class GyroDropout(Method, name="gyro_dropout", hooks=_GyroDropoutHooks):
    """Drop features by `sigma` masks drawn before the run, of which `tau` are in use at a time, each for a part of the
    batch (Lee et al. 2022, "Gyro Dropout", MLSys 2022).

    The run is divided into sigma / tau equal parts, and each mask is used in one of them. Masks and order are functions
    of the seed, and the part is one of the progress, so a resumed run has the same ones. MosaicML Composer draws them
    again and cannot be resumed.

    Examples:
        >>> from timedrun.methods import Position
        >>> method = GyroDropout(p=0.5, sigma=8, tau=2)
        >>> len(method.chosen(Position(step=0, progress=0.0)))
        2
        >>> method.model(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))[0][1]
        GyroDropoutLayer(p=0.1, inplace=False)
    """

    acting: ClassVar[tuple[type, ...]] = (GyroDropoutLayer,)
    p: Probability = 0.5
    sigma: int = 256
    tau: int = 16

    def check(self) -> None:
        fits = 1 <= self.tau <= self.sigma and not self.sigma % self.tau
        self.require("tau", fits, f"1 or more and divide sigma, {self.sigma}")

    def chosen(self, at: Position) -> tuple[int, ...]:
        """Return the numbers of the masks in use."""
        parts = self.sigma // self.tau
        part = min(int(at.progress * parts + 1e-9), parts - 1)
        order = Position(0, 0.0, at.seed).random(self.name).permutation(self.sigma)
        return tuple(order[part * self.tau : (part + 1) * self.tau].tolist())

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        every = [layer for layer in model.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
        dropped = [layer for layer in every if type(layer) is nn.Dropout and layer.p and not hooked(layer)]
        left = left_out(layer for layer in every if layer.p and layer not in dropped)
        left += f"; {len(off)} of rate 0 stay off" if (off := [layer for layer in every if not layer.p]) else ""
        for parent in list(model.modules()):
            for name, child in parent._modules.items():
                if child in dropped:
                    setattr(parent, name, GyroDropoutLayer(child.p, self.p, child.inplace).train(child.training))
        if not dropped:
            raise self.no_effect(f"found no nn.Dropout of a rate above 0 to replace{left}")
        made = sum(isinstance(layer, GyroDropoutLayer) for layer in model.modules())  # two of one in two places
        return model, f"{made} dropout layers{left}"
