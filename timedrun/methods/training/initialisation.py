"""Initial weights of convolutional networks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

Initialisation = Literal[
    "torch", "kaiming", "kaiming_bn_uniform", "torchvision", "torchvision_zero_residual", "identity"
]
"""torch: the layers' own; kaiming: normal, fan-in, for convolutions and linear layers; kaiming_bn_uniform: batch norm
scales uniform in [0, 1) as well, as in MosaicML's 2022 runs; torchvision: its ResNet's, normal, fan-out, for
convolutions alone; torchvision_zero_residual: the last batch norm of each residual block starts at zero as well;
identity: filters that pass their channel on, of networks that define it."""


def initialize(model: nn.Module, how: Initialisation) -> None:
    """Draw the weights of convolutions, linear layers and batch norms anew, in place; "torch" changes nothing.

    Raises ValueError for torchvision_zero_residual and a model without ResNet blocks under torchvision's names, and
    for identity, which a network defines for itself.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> initialize(model, "kaiming")
        >>> initialize(model, "identity")
        Traceback (most recent call last):
            ...
        ValueError: initialisation identity is not defined for Sequential; use torch or kaiming
    """
    if how == "torch":
        return
    if how == "identity":
        raise ValueError(f"initialisation identity is not defined for {type(model).__name__}; use torch or kaiming")
    if how in ("torchvision", "torchvision_zero_residual"):
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")  # N(0, 2 / fan_out)
            elif isinstance(layer, nn.BatchNorm2d):
                layer.reset_parameters()
        if how == "torchvision_zero_residual":  # a block begins as the identity: Goyal et al. 2017, arXiv 1706.02677
            if not (blocks := residual_blocks(model)):
                raise ValueError(
                    f"this {type(model).__name__} has no residual blocks with bn2 or bn3 and downsample, so none of"
                    " their scales could be set to zero; use initialisation torchvision"
                )
            for block in blocks:
                init.zeros_(last_norm(block).get_parameter("weight"))
        return
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            init.kaiming_normal_(layer.weight)  # N(0, 2 / fan_in), He et al. 2015
    if how == "kaiming_bn_uniform":
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                init.uniform_(layer.weight)


class _UndrawnWeights(TorchFunctionMode):
    """Leave tensors as they are where random numbers would be drawn into them."""

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_, init.normal_, init.uniform_, init.kaiming_uniform_):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Build modules on the meta device without drawing their weights, for which torch would import its compiler.

    Examples:
        >>> with on_meta_device():
        ...     layer = nn.Linear(4, 2)
        >>> layer.weight.device
        device(type='meta')
    """
    with torch.device("meta"), _UndrawnWeights():
        yield


def residual_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the residual blocks of `model` in order: modules with a `downsample` and the batch norm `bn2`, names that
    this project, torchvision and timm share.

    Examples:
        >>> residual_blocks(nn.Sequential(nn.Conv2d(3, 8, 3)))
        []
    """
    return [block for block in model.modules() if hasattr(block, "downsample") and hasattr(block, "bn2")]


def last_norm(block: nn.Module) -> nn.Module:
    """Return the batch norm that ends the branch of a residual block.

    Examples:
        >>> last_norm(nn.ModuleDict({"bn2": nn.BatchNorm2d(8), "bn3": nn.BatchNorm2d(32)}))
        BatchNorm2d(32, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """
    norm = getattr(block, "bn3", None) or block.bn2
    assert isinstance(norm, nn.Module)
    return norm
