"""Log bias: start every output near probability 1/K, which binary cross-entropy over K classes needs."""

from __future__ import annotations

import math

import torch
from torch import nn

from timedrun.methods.method import Method


@torch.no_grad()
def linear_log_constant_bias(model: nn.Module) -> str | None:
    """Set the bias of the classifier to -ln(out_features) (-6.9078 for 1000), in place; return a description of it.

    The classifier is the model's last module with parameters, in order of registration; None if that is not an
    nn.Linear with a bias. MosaicML Composer's function of this name sets every Linear layer instead, which disables
    the hidden ones of VGG, AlexNet and MobileNetV3: all of their units start negative.

    Raises ValueError for several classifiers: layers as wide as the last that lead to no other layer, such as the
    auxiliary heads of GoogLeNet and the second head of a distilled DeiT.
    """
    name, last = next(((n, part) for n, part in reversed([*model.named_modules()]) if part._parameters), ("", model))
    if not isinstance(last, nn.Linear) or last.bias is None:
        return None
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    heads = [path for path, layer in layers.items() if layer.out_features == last.out_features]
    if len(heads) > 1 and all(layer.in_features != last.out_features for layer in layers.values()):
        raise ValueError(
            f"log_bias sets the bias of one classifier, but this {type(model).__name__} has {len(heads)}: "
            f"{', '.join(heads)}; nothing was changed; remove it from the methods and call "
            "linear_log_constant_bias on each of those that the loss uses"
        )
    last.bias.fill_(-math.log(last.out_features))
    return f"bias of {name or 'the model'} set to -ln({last.out_features})"


class LogBias(Method, name="log_bias"):
    """Initial bias of the classifier for binary cross-entropy, as in MLPerf v2.0's ResNet-50 methods run."""

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        changed = linear_log_constant_bias(model)
        if changed is None:
            raise self.no_effect(
                "sets a classifier's bias, but the model's last layer with parameters is not an nn.Linear with a bias"
            )
        return model, changed
