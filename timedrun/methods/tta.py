"""Test-time augmentation: evaluate the mean of a classifier's outputs over mirrored and shifted images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods.method import LATER, Hooks, Method, Rule, Stage, require_images, unwrapped


def mean_over_views(model: Callable[[Tensor], Tensor], images: Tensor, shift: int = 1, share: float = 1.0) -> Tensor:
    """Return the mean of `model`'s outputs [N, ...] over views of `images` [N, C, H, W].

    Each image and its mirror image have weight 1/4; both moved by `shift` pixels up and left, and down and right, have
    1/8. With `shift` 0 the first two have 1/2. The edge that moves in is reflected. Outputs of each pixel [N, ..., H,
    W] are moved back, and each is the mean over the views that have its pixel; those of another size raise ValueError.
    With `share` below 1, the outputs are logits [N, classes], and only that share of the images has views: those whose
    likeliest class has the least probability.

    Examples:
        >>> mean_over_views(lambda images: images.mean((2, 3)), torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 3])
    """
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format  # another one would be compiled anew
    if share < 1:
        outputs = _outputs(model, images).clone()
        if outputs.shape[2:].numel() > 1:
            raise ValueError(
                f"tta cannot choose images by outputs {list(outputs.shape)}, not [N, classes]; set share 1"
            )
        doubtful = outputs.flatten(1).softmax(1).amax(1).topk(math.ceil(share * len(images)), largest=False).indices
        outputs[doubtful] = mean_over_views(model, images[doubtful].contiguous(memory_format=layout), shift)
        return outputs
    outputs = _mean_of_mirrored(model, images)
    if not shift:
        return outputs
    height, width = images.shape[2:]
    total, dense = torch.ones_like(outputs), outputs.shape[2:].numel() > 1
    padded = F.pad(images, (shift,) * 4, mode="reflect")
    for start in (0, 2 * shift):
        moved = padded[:, :, start : start + height, start : start + width].contiguous(memory_format=layout)
        mean, back = _mean_of_mirrored(model, moved), (start - shift, shift - start) * 2 if dense else ()
        outputs, total = outputs + F.pad(0.5 * mean, back), total + F.pad(torch.full_like(mean, 0.5), back)
    return outputs / total


def _outputs(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    outputs = model(images)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        returned = getattr(outputs, "dtype", type(outputs).__name__)
        raise TypeError(f"tta averages a tensor of floating-point outputs, and the model returns {returned}; remove it")
    return outputs


def _mean_of_mirrored(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    outputs, mirrored = _outputs(model, images), model(images.flip(-1))
    if outputs.shape[2:].numel() > 1:
        if outputs.shape[-2:] != images.shape[-2:]:
            raise ValueError(
                f"tta cannot move outputs {list(outputs.shape)} of images {list(images.shape)} back: they are neither "
                "[N, classes] nor maps of the images' height and width; remove it"
            )
        mirrored = mirrored.flip(-1)
    return 0.5 * outputs + 0.5 * mirrored


class _TTAHooks(Hooks):
    _method: TTA
    saved = ("evaluations",)
    evaluations = 0

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        # The network of `Stack.model`, with what compiles it, wherever `model` (a LightningModule) holds it.
        model = next((part for part in model.modules() if hasattr(unwrapped(part), "viewed")), model)
        # torch's own place of a call's replacement, which Module.compile uses: the compiled graph stays as it is.
        compiled, called = model._compiled_call_impl, False
        call = compiled or model._call_impl

        def averaged(*inputs: Any, **named: Any) -> Tensor:
            nonlocal called
            if len(inputs) != 1 or named or not isinstance(inputs[0], Tensor):
                raise TypeError("tta averages over the images that a model takes alone: model(images); remove it")
            require_images(self._method.name, inputs[0])
            called = True
            return mean_over_views(call, inputs[0], self._method.shift, self._method.share)

        model._compiled_call_impl = averaged
        try:
            yield
        finally:
            model._compiled_call_impl = compiled
            self.evaluations += called

    def effect(self) -> str | None:
        views = 6 if self._method.shift else 2
        whose = "each image" if self._method.share == 1 else f"{self._method.share:.0%} of the images"
        return f"{self.evaluations} evaluations over {views} views of {whose}" if self.evaluations else None


class TTA(Method, name="tta", stage=Stage.WEIGHTS, hooks=_TTAHooks):
    """Evaluate the mean of the outputs over six views of each image, as airbench94 does (Jordan 2024, arXiv 2404.00498,
    section 3.5); `shift` 0: two views. An evaluation takes as many passes as views.

    Examples:
        >>> from timedrun.methods import stack
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> speed = stack(TTA(shift=1))
        >>> model = speed.model(net)
        >>> with torch.no_grad(), speed.evaluation(model):
        ...     _ = model(torch.rand(2, 3, 8, 8))
        >>> speed.report
        ['tta: 1 evaluations over 6 views of each image']
    """

    clashes: ClassVar[dict[str, str]] = {"no_op_model": "leave no image to evaluate"}
    needs_tensors = "calls the model with images alone"
    shift: Annotated[int, Rule(lambda pixels: pixels >= 0, "0 or more pixels")] = 1
    """Pixels by which images are moved up and left, and down and right."""
    share: Annotated[float, Rule(lambda share: 0 < share <= 1, "above 0, to 1")] = field(default=1.0, metadata=LATER)
    """Share of the images of a batch that have all views: those of the least certain class. Others are seen once."""

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        if all(parameter.dim() != 4 for parameter in model.parameters()):
            raise self.no_effect("found no 2-d convolution, so the inputs are no images")
        model.viewed = True  # type: ignore[assignment]  # to be found inside another module
        return model, ""
