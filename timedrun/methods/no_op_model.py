"""No-op model: one scalar in place of the model, so that a run takes the time of its loader and its loop."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.method import Method, Stage


class Scalar(nn.Module):
    """Return logits that are one trainable number, whatever the inputs: [N, `classes`] for images, [N, L, `classes`]
    for tokens [N, L].

    Examples:
        >>> Scalar(classes=10)(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 10])
        >>> Scalar(classes=10)(torch.zeros(2, 6, dtype=torch.long)).shape
        torch.Size([2, 6, 10])
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        shape = inputs.shape[:1] if inputs.is_floating_point() else inputs.shape
        return self.value.expand(*shape, self.classes)


class NoOpModel(Method, name="no_op_model", stage=Stage.WEIGHTS):
    """Replace a classifier or a language model by one scalar, after all other surgery, for profiling: a step takes the
    time of loader, transfer, other methods and loop. MosaicML Composer's NoOpModel has a loss of its own.

    No result of such a run counts: `Stack.verify`, which runs call before they succeed, raises.

    Examples:
        >>> from timedrun.methods import BlurPool, stack
        >>> speed = stack(NoOpModel(), BlurPool())
        >>> model = speed.model(nn.Sequential(nn.MaxPool2d(2), nn.Linear(64, 10)))
        >>> speed.report
        ['blurpool: 0 convolutions, 1 max-pool', 'no_op_model: one scalar in place of 650 parameters']
        >>> sum(parameter.numel() for parameter in model.parameters())
        1
    """

    profiling: ClassVar[bool] = True
    needs_tensors = "leaves a model that takes inputs alone"

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        heads = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        if not heads:
            raise self.no_effect("needs a model with a linear layer, whose last one has the outputs")
        like = next(model.parameters())
        scalar = Scalar(heads[-1].out_features).to(like.device, like.dtype).train(model.training)
        return scalar, f"one scalar in place of {sum(p.numel() for p in model.parameters()):,} parameters"
