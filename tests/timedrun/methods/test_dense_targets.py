"""Targets for each pixel stay with the pixels, or the method is refused."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods import REGISTRY, ColOut, CutOut, Hooks, Method, ProgressiveResizing, SelectiveBackprop, stack
from timedrun.methods.method import Position

PIXELS = torch.arange(2.0 * 24 * 40).view(2, 24, 40)
"""Images that name each of their pixels, and masks."""
IMAGES, SOFT = PIXELS[:, None], torch.rand(24, 40)  # as large as a mask, and none: of 24 samples
NAMES = ("randaugment", "augmix", "cutmix", "mixup", "label_smoothing")


def passed(targets: Any, *methods: Method) -> Any:
    speed = stack(*methods)
    speed.before_step(nn.Identity(), 0, 0.0)
    if type(targets) is dict:
        return speed.batch_dict({"pixel_values": IMAGES} | targets)
    return speed.batch(IMAGES, targets, 9)


@pytest.mark.parametrize("methods", [[ColOut()], [ColOut(), ProgressiveResizing(start=0.55)], [CutOut()]])
def test_masks_and_maps_have_the_values_of_their_own_pixels(methods):
    images, (mask, (maps, flag), labels) = passed((PIXELS.long(), [IMAGES, PIXELS > 900], torch.arange(2)), *methods)
    seen = images != 0  # not cut out
    assert torch.equal(mask[:, None][seen], images[seen].long()) and torch.equal(maps[seen], images[seen])
    assert torch.equal(flag, mask > 900) and labels.tolist() == [0, 1]
    fields = passed({"labels": PIXELS.long(), "masks": [PIXELS], "soft": SOFT, "texts": ["a"]}, *methods)
    assert torch.equal(fields["labels"], mask) and torch.equal(fields["masks"][0], maps[:, 0])
    assert torch.equal(fields["pixel_values"], images) and fields["soft"] is SOFT and fields["texts"] == ["a"]


def test_classes_are_never_mixed_where_images_are():
    images, (mask, depth) = passed((PIXELS.long(), PIXELS), ProgressiveResizing(increment=6, interpolation="bilinear"))
    torch.testing.assert_close(depth, images[:, 0])
    assert torch.equal(mask, F.interpolate(IMAGES, size=depth.shape[1:], mode="nearest-exact")[:, 0].long())


class _Crop(Hooks):
    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        return inputs[..., 1:], targets


class Crop(Method, hooks=_Crop): ...


@pytest.mark.parametrize("targets", [PIXELS.long(), (torch.arange(2), PIXELS), {"labels": PIXELS}, PIXELS[:, ::4, ::4]])
@pytest.mark.parametrize("method", [Crop(), *(REGISTRY[name]() for name in NAMES)])
def test_a_method_that_leaves_them_behind_is_refused(method, targets):
    with pytest.raises(
        ValueError, match=rf"{method.name} would move .*\[2, 1, 24, 40\] without|class indices|that change"
    ):
        passed(targets, method)


def test_an_own_method_can_move_them_and_where_images_shrink_maps_have_their_size(monkeypatch):
    monkeypatch.setattr(Crop, "moves_pixels", False)  # wrongly
    with pytest.raises(ValueError, match=r"Crop would move pixels of images \[2, 1, 24, 39\] without"):
        passed(PIXELS, Crop())
    monkeypatch.setattr(_Crop, "move", lambda self, maps, at: maps[..., 1:], raising=False)
    assert torch.equal(*passed(PIXELS[:, None], Crop()))
    for method in (ColOut(), Crop()):
        with pytest.raises(ValueError, match=r"without their targets \[2, \d, \d\]"):
            passed(PIXELS[:, ::4, ::4], method)


def test_samples_that_are_scored_at_a_smaller_size_have_masks_of_it():
    speed = stack(SelectiveBackprop(start=0.0, interrupt=0, scale=0.5))
    speed.enter(0, 0.1)
    losses = lambda images, targets: (images[:, 0] - targets[0]).mean((1, 2))  # noqa: E731
    images, (mask, labels) = speed.select(IMAGES, (PIXELS.long(), torch.arange(2)), losses)
    assert torch.equal(mask, images[:, 0].long()) and labels.shape == (1,)
