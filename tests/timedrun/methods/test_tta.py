"""Test-time augmentation: the mean of the views, and a model that is itself again after an evaluation."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods import TTA, mean_over_views, stack


def test_the_views_of_a_corner_are_those_of_a_reflected_edge():
    images, corner = torch.arange(16.0).view(1, 1, 4, 4), lambda views: views[:, :, 0, 0]
    # Plain and mirrored 0 and 3; up and left by one: 5 (reflected) and its mirror image's 6; down and right: 5, 6.
    assert mean_over_views(corner, images, shift=0).item() == 1.5
    padded = torch.nn.functional.pad(images, (1,) * 4, mode="reflect")
    shifted = [padded[0, 0, start, column].item() for start in (0, 2) for column in (start, start + 3)]
    assert mean_over_views(corner, images).item() == (1.5 + sum(shifted) / 4) / 2


@pytest.mark.parametrize("how", ["eager", "compiled in place", "wrapped by torch.compile"])
def test_only_evaluations_see_the_views(how):
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
    images = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    plain = model(images)
    expected = mean_over_views(model, images)
    if how == "compiled in place":
        model.compile(backend="eager")
    elif how == "wrapped by torch.compile":
        model = torch.compile(model, backend="eager")
    speed = stack(TTA())
    assert speed.report == ["tta: nothing yet"]
    with speed.evaluation(model):
        torch.testing.assert_close(model(images), expected)
        assert not torch.allclose(expected, plain)
    torch.testing.assert_close(model(images), plain)
    assert speed.report == ["tta: 1 evaluations over 6 views of each image"]


def test_views_are_of_the_network_inside_another_module_and_an_evaluation_without_it_is_none():
    speed, images = stack(TTA()), torch.randn(2, 3, 6, 6)
    network = speed.model(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()))
    expected = mean_over_views(network, images)
    with speed.evaluation(nn.ModuleList([nn.Conv2d(3, 4, 3), network])):
        assert speed.report == ["tta: nothing yet"]
        torch.testing.assert_close(network(images), expected)
    compiled = torch.compile(network, backend="eager")
    with speed.evaluation(nn.ModuleList([compiled])):
        torch.testing.assert_close(compiled(images), expected)
    with speed.evaluation(network):
        pass
    assert speed.report == ["tta: 2 evaluations over 6 views of each image"]


def test_calls_and_outputs_of_another_kind_are_refused():
    class Named(nn.Conv2d):
        def forward(self, input: Tensor) -> dict[str, Tensor]:
            return {"logits": super().forward(input)}

    model = Named(3, 4, 3)
    with stack(TTA()).evaluation(model):
        with pytest.raises(TypeError, match=r"model\(images\)"):
            model(input=torch.ones(1, 3, 4, 4))
        with pytest.raises(TypeError, match="the model returns dict"):
            model(torch.ones(1, 3, 4, 4))
        with pytest.raises(ValueError, match="images"):
            model(torch.ones(2, 3))
    images = torch.rand(2, 3, 6, 6)
    with pytest.raises(ValueError, match=r"tta cannot move outputs \[2, 3, 3, 3\] of images"):
        mean_over_views(lambda views: views[..., ::2, ::2], images)
    with pytest.raises(TypeError, match=r"returns torch\.int64"):
        mean_over_views(lambda views: views.argmax(1), images)
    assert mean_over_views(nn.AdaptiveAvgPool2d(1), images).shape == (2, 3, 1, 1)  # classes, not flattened


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_outputs_of_each_pixel_are_moved_back_and_averaged_over_the_views_that_have_it(shift, channels):
    places, images = torch.rand(*channels, 7, 9), torch.rand(3, 1, 7, 9)
    model = lambda views: (views if channels else views[:, 0]) + places  # noqa: E731  # knows where a pixel is
    around = F.pad((places + places.flip(-1)) / 2, (shift,) * 4, value=torch.nan)
    moved = [around[..., start : start + 7, start : start + 9] for start in (shift, shift, 0, 2 * shift)]
    expected = (images if channels else images[:, 0]) + torch.stack(moved).nanmean(0)
    torch.testing.assert_close(mean_over_views(model, images, shift), expected)
