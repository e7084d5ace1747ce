"""Log bias: start every output near probability 1/K, which binary cross-entropy over K classes needs."""

import math

import torch
from torch import Tensor, nn

from timedrun.methods.method import Hooks, Method, Position, unwrapped


def takers(model: nn.Module, layer: nn.Linear) -> list[nn.Linear]:
    """Return the other linear layers of `model` that take as many features as `layer` has outputs.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        >>> takers(model, model[0])
        [Linear(in_features=8, out_features=2, bias=True)]
    """
    others = [other for other in model.modules() if isinstance(other, nn.Linear) and other is not layer]
    return [other for other in others if other.in_features == layer.out_features]


def may_be_hidden(model: nn.Module, last: nn.Linear) -> bool:
    """Return True if the outputs of `last` fit a layer whose own outputs fit none. The classifier of a model that
    registers its body after it is such a layer.

    Examples:
        >>> model = nn.ModuleDict({"head": nn.Linear(8, 2), "body": nn.Linear(4, 8)})
        >>> may_be_hidden(model, model["body"])
        True
    """
    return any(not takers(model, other) for other in takers(model, last))


def classifier(model: nn.Module, classes: int = 0) -> tuple[str, nn.Linear] | None:
    """Return the name and the layer of the model's last module with parameters, in order of registration.

    With `classes`, return the last nn.Linear with as many outputs, one whose outputs fit no other layer if there is
    one. Return None if the module is not an nn.Linear with a bias.

    Examples:
        >>> classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
        ('2', Linear(in_features=8, out_features=2, bias=True))
    """
    own = ((name, part) for name, part in model.named_modules() if "parametrizations" not in name.split("."))
    parts = [(name, part) for name, part in own if part._parameters]
    if classes:
        fitting = [part for part in parts if isinstance(part[1], nn.Linear) and part[1].out_features == classes]
        parts = [part for part in fitting if not takers(model, part[1])] or fitting
    name, last = parts[-1] if parts else ("", model)
    return (name, last) if isinstance(last, nn.Linear) and last.bias is not None else None


@torch.no_grad()
def linear_log_constant_bias(model: nn.Module, classes: int = 0) -> str | None:
    """Set the bias of the classifier to -ln(out_features) (-6.9078 for 1000), in place; return a description of it.

    The layer is that of `classifier`; None without one. MosaicML Composer's function of this name sets every Linear
    layer instead, which disables the hidden ones of VGG, AlexNet and MobileNetV3: all of their units start negative.

    Raises ValueError for several classifiers: layers as wide as the last that lead to no other layer, such as the
    auxiliary heads of GoogLeNet and the second head of a distilled DeiT; and without `classes` if the last layer may be
    a hidden one.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1000))
        >>> linear_log_constant_bias(model)
        'bias of 2 set to -ln(1000)'
        >>> f"{model[2].bias[0]:.4f}"
        '-6.9078'
    """
    chosen = classifier(model, classes)
    if chosen is None:
        return None
    name, last = chosen
    if not classes and may_be_hidden(model, last):
        raise ValueError(
            f"{name}, the last layer that this {type(model).__name__} registers, has {last.out_features} outputs, "
            "which another layer takes, so it may be hidden; nothing was changed; pass the number of classes"
        )
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


class _LogBiasHooks(Hooks):
    saved = ("change",)
    done = "{hooks.change}"
    change = ""  # made by the first batch
    _network: nn.Module | None = None

    def before_step(self, model: nn.Module, at: Position) -> None:
        if self._network is None:
            parts = unwrapped(model).modules()
            self._network = next((part for part in parts if hasattr(part, "log_bias_outputs")), None)

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        outputs = getattr(self._network, "log_bias_outputs", None)
        if self._network is None or self.change or outputs == classes or (outputs and not classes):
            return inputs, targets  # 0 classes: a dict's, which are not known
        if not outputs and classes:
            self.change = linear_log_constant_bias(self._network, classes) or ""
        if not self.change:
            raise ValueError(
                f"log_bias found no classifier of {classes} classes, the batch's, at the end of this "
                f"{type(self._network).__name__}; no step was taken; build it anew for these classes, or without "
                "log_bias, and call linear_log_constant_bias on its classifier"
            )
        return inputs, targets


class LogBias(Method, name="log_bias", hooks=_LogBiasHooks):
    """Start the classifier's bias at -ln(classes) for binary cross-entropy, as in MLPerf v2.0's ResNet-50 methods run.

    Examples:
        >>> model, change = LogBias().model(nn.Sequential(nn.Linear(4, 1000)))
        >>> change
        'bias of 0 set to -ln(1000)'
    """

    moves_pixels = False

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        chosen = classifier(model)
        if chosen is None:
            raise self.no_effect(
                "sets a classifier's bias, but the model's last layer with parameters is not an nn.Linear with a bias"
            )
        later = may_be_hidden(model, chosen[1])
        model.log_bias_outputs = 0 if later else chosen[1].out_features  # type: ignore[assignment]
        return model, "" if later else linear_log_constant_bias(model) or ""
