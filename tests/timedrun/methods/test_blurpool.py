"""BlurPool: what is replaced, and that the arithmetic is a depthwise binomial filter with attenuated borders."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import convolve
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from timedrun.methods import BlurPool, blurpool
from timedrun.methods.blurpool import BlurConv2d, BlurMaxPool2d, _kernel, blur, blur_by_pools, blur_by_slices

BINOMIAL = np.outer([1, 2, 1], [1, 2, 1]) / 16


@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
def test_blur_is_a_zero_padded_binomial_filter_of_each_channel(stride: int | tuple[int, int]) -> None:
    image = torch.randn(2, 3, 7, 9)
    rows, columns = stride if isinstance(stride, tuple) else (stride, stride)
    expected = np.stack(
        [[convolve(channel, BINOMIAL, mode="constant") for channel in sample] for sample in image.numpy()]
    )
    actual = blur(image, _kernel(None), stride).numpy()
    np.testing.assert_allclose(actual, expected[:, :, ::rows, ::columns], atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("kernel, padding", [(1, 0), (3, 1), (5, 2)])
def test_blurred_convolution_equals_blur_then_strided_convolution(kernel: int, padding: int, size: int) -> None:
    conv = nn.Conv2d(16, 4, kernel, stride=2, padding=padding, bias=True)
    image = torch.randn(2, 16, size, size)
    expected = F.conv2d(blur(image, _kernel(None)), conv.weight, conv.bias, 2, padding)
    torch.testing.assert_close(BlurConv2d.of(conv, blur_first=True)(image), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("by", [blur_by_pools, blur_by_slices])
@pytest.mark.parametrize("shape", [(7, 10), (8, 9), (1, 2)])
@pytest.mark.parametrize("stride", [1, 2, (2, 1), 3])
def test_the_formulas_for_cuda_are_the_blur(by: Any, shape: tuple[int, int], stride: Any) -> None:
    x, same = (torch.randn(2, 3, *shape, dtype=torch.float64).requires_grad_() for _ in range(2))
    same.data.copy_(x.data)
    actual, expected = by(x, stride), blur(same, _kernel(same), stride)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(actual)
    (actual * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, same.grad)


def test_on_cuda_no_convolution_blurs() -> None:
    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function._schema.name)
            return function(*args, **(kwargs or {}))

    called: list[str] = []
    with FakeTensorMode(), Recorded():  # of CUDA, where there is none
        image = torch.empty(2, 16, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        blurred = blur(image, _kernel(None), 2)
    assert called.count("aten::avg_pool2d") == 2 and "aten::convolution" not in called
    assert blurred.shape == (2, 16, 4, 4) and blurred.is_contiguous(memory_format=torch.channels_last)


def test_a_convolution_blurred_last_and_a_max_pool_are_dense_and_blurred_with_the_stride() -> None:
    conv, image = nn.Conv2d(16, 4, 3, stride=2, padding=1), torch.randn(2, 16, 8, 8)
    expected = blur(F.conv2d(image, conv.weight, conv.bias, 1, 1), _kernel(None), 2)
    torch.testing.assert_close(BlurConv2d.of(conv, blur_first=False)(image), expected)
    expected = blur(F.max_pool2d(image, 3, 1, 1), _kernel(None), 2)
    assert torch.equal(BlurMaxPool2d.of(nn.MaxPool2d(3, 2, 1))(image), expected)


def test_resnet50_has_six_convolutions_and_one_pool_replaced(torchvision: ModuleType) -> None:
    model = torchvision.models.resnet50()
    keys = list(model.state_dict())
    _, words = BlurPool().model(model)
    assert words == "6 convolutions, 1 max-pool"
    blurred = [name for name, module in model.named_modules() if isinstance(module, BlurConv2d)]
    assert blurred == [f"layer{n}.0.{part}" for n in (2, 3, 4) for part in ("conv2", "downsample.0")]
    assert isinstance(model.maxpool, BlurMaxPool2d)
    assert type(model.conv1) is nn.Conv2d  # 3 input channels
    assert list(model.state_dict()) == keys
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 1000)


def test_parameters_are_the_ones_the_model_had_and_a_layer_used_twice_stays_one() -> None:
    conv = nn.Conv2d(16, 16, 3, stride=2)
    model = nn.Sequential(conv, nn.MaxPool2d(2), conv).eval()
    assert blurpool(model).convolutions == 1
    assert isinstance(model[0], BlurConv2d) and model[0] is model[2]
    assert model[0].weight is conv.weight
    assert not model[0].training and not model[1].training
    model.double()(torch.randn(1, 16, 16, 16, dtype=torch.float64))  # the kernel follows the model's type


def test_switches_and_the_channel_limit_choose_what_is_replaced() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(8, 16, 3, stride=2), nn.Conv2d(16, 16, 3, stride=2), nn.MaxPool2d(2))

    assert blurpool(model()) == (1, 1, 0)
    assert blurpool(model(), min_channels=8) == (2, 1, 0)
    assert blurpool(model(), replace_convs=False) == (0, 1, 0)
    assert blurpool(model(), replace_maxpools=False) == (1, 0, 0)


def test_layers_it_cannot_replace_are_left_and_counted() -> None:
    class Own(nn.Conv2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    reflecting = nn.Conv2d(16, 16, 3, stride=2, padding=1, padding_mode="reflect")
    normalised = nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 16, 3, stride=2))
    model = nn.Sequential(
        Own(16, 16, 3, stride=2), reflecting, normalised, nn.MaxPool2d(2, return_indices=True), nn.Conv2d(16, 16, 3, 2)
    )
    _, words = BlurPool().model(model)
    assert words == "1 convolution, 0 max-pools, 4 strided layers left as they were"
