"""No-op model: one scalar in place of the model, so that a run takes the time of its loader and its loop."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.method import Method, Stage


class Scalar(nn.Module):
    """Logits that are one trainable number, whatever the inputs: [N, `classes`] for images, [N, L, `classes`] for
    tokens [N, L]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        shape = inputs.shape[:1] if inputs.is_floating_point() else inputs.shape
        return self.value.expand(*shape, self.classes)


class NoOpModel(Method, name="no_op_model", stage=Stage.WEIGHTS):
    """One scalar in place of a classifier or a language model, after all other surgery, for profiling: a step takes the
    time of loader, transfer, other methods and loop. As MosaicML Composer's NoOpModel, which has a loss of its own.

    No result of such a run counts: `Stack.verify`, which runs call before they succeed, raises.
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
