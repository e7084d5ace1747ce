"""Layers that methods add or convert: blurred, gated, factorized, float8, squeeze-and-excitation, norms, memory."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import convolve
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tests.timedrun.methods.small_transformers import small_transformer
from timedrun.methods import BlurPool, ChannelsLast, Factorize, GatedLinearUnits, WeightStandardization, stack
from timedrun.methods.blurpool import BlurConv2d, BlurMaxPool2d, blur, blur_by_pools, blur_by_slices
from timedrun.methods.factorize import factors, rank_of
from timedrun.methods.float8 import Float8, float8_linear
from timedrun.methods.ghost_batch_norm import GhostBatchNorm
from timedrun.methods.low_precision_norm import LowPrecisionGroupNorm, LowPrecisionLayerNorm
from timedrun.methods.method import NoEffect
from timedrun.methods.squeeze_excite import SqueezeExcitation, SqueezeExcite


def test_channels_are_scaled_by_the_formula():
    torch.manual_seed(0)
    layer, x = SqueezeExcitation(3, 2), torch.randn(4, 3, 5, 6)
    w1, w2 = layer.reduce.weight.double(), layer.expand.weight.double()
    for sample, out in zip(x, layer(x), strict=True):
        gates = 1 / (1 + (-(w2 @ (w1 @ sample.double().mean(dim=(1, 2))).clamp(min=0))).exp())
        torch.testing.assert_close(out, (sample * gates[:, None, None]).float())


def test_wide_convolutions_are_followed_by_it_whoever_replaced_them():
    def network() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3, 2), nn.Conv2d(32, 16, 1, bias=False))

    method = SqueezeExcite(min_channels=16, latent_channels=0.5)
    torch.manual_seed(0)
    model = stack(BlurPool(), method).model(network())
    names = [name for name, _ in model.named_parameters() if "squeeze" in name]
    assert names == [f"{layer}.squeeze_excite.{part}.weight" for layer in (1, 2) for part in ("reduce", "expand")]
    assert model[1].squeeze_excite.reduce.weight.shape == (16, 32)
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        for layer in (1, 2):
            model[layer].squeeze_excite.expand.weight.zero_()  # gates of 0.5
    plain = stack(BlurPool()).model(network())
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        between = plain[1](plain[0](images))
        torch.testing.assert_close(model(images), 0.5 * plain[2](0.5 * between))
    other = stack(method, BlurPool()).model(network())
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(images), model(images))


def bert(kind: str = "Bert") -> nn.Module:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    return small_transformer(f"{kind}ForMaskedLM", vocab_size=30, **shape).eval()


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_the_feed_forward_layer_computes_the_formula_and_has_two_thirds_of_the_width_if_asked(torchvision, kind):
    counts = sum(parameter.numel() for parameter in bert(kind).parameters())
    narrow = stack(GatedLinearUnits(iso_parameters=True)).model(bert(kind))
    assert narrow.base_model.encoder.layer[1].intermediate.up.out_features == 32
    assert counts - 2 * 48 == sum(p.numel() for p in narrow.parameters())  # without the biases of the first map
    model = stack(GatedLinearUnits()).model(bert(kind)).eval()
    layer = model.base_model.encoder.layer[0]
    x = torch.randn(2, 5, 16)
    gate, up, out = layer.intermediate.gate.weight, layer.intermediate.up.weight, layer.output
    gated = x @ gate.T
    hidden = 0.5 * gated * (1 + torch.erf(gated / 2**0.5)) * (x @ up.T)
    inner = hidden @ out.dense.weight.T + out.dense.bias + x
    mean, variance = inner.mean(-1, keepdim=True), inner.var(-1, correction=0, keepdim=True)
    torch.testing.assert_close(layer.feed_forward_chunk(x), (inner - mean) / (variance + 1e-12).sqrt())


def test_layers_of_low_rank_compute_the_same_after_it():
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(8, 16, 3, stride=2, padding=1, dilation=2), nn.Linear(16, 12)
    with torch.no_grad():
        convolution.weight.copy_((torch.randn(16, 2) @ torch.randn(2, 72)).view(16, 8, 3, 3))
        linear.weight.copy_(torch.randn(12, 3) @ torch.randn(3, 16))
    network = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear)
    images = torch.randn(4, 8, 9, 9)
    expected = network(images)
    model = stack(Factorize(min_channels=8, min_features=8)).model(network)
    assert [tuple(p.shape) for p in model[0].parameters()] == [(2, 8, 3, 3), (16, 2, 1, 1), (16,)]
    torch.testing.assert_close(model(images), expected, atol=1e-4, rtol=1e-4)


def test_ranks_save_something_or_are_0_and_the_product_is_the_nearest_of_its_rank():
    assert (rank_of(0.25, 256, 512), rank_of(128, 256, 256), rank_of(127, 256, 256)) == (64, 0, 127)
    assert rank_of(0.9, 64, 64, taps=9) == 57 and rank_of(0.9, 64, 64) == 0  # 57 (64 * 9 + 64) < 64 * 9 * 64
    weight = torch.randn(6, 9)
    last, first = factors(weight, 4)
    assert last.shape == (6, 4) and first.shape == (4, 9)
    dropped = torch.linalg.svdvals(weight)[4:]  # Eckart and Young: the error of the nearest
    torch.testing.assert_close(torch.linalg.norm(weight - last @ first), torch.linalg.norm(dropped))


def test_weights_and_inputs_are_converted_and_outputs_stay_the_same():
    plain = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 3, stride=2))
    speed = stack(ChannelsLast())
    model = speed.model(copy.deepcopy(plain))
    images = torch.randn(2, 3, 9, 9)
    speed.enter(0, 0.0)
    inputs, _ = speed.batch(images, torch.zeros(2), 2)
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in model.parameters() if p.dim() == 4)
    torch.testing.assert_close(model(inputs), plain(images), atol=1e-5, rtol=1e-5)
    speed.verify()
    assert speed.report == ["channels_last: 2 convolution weights"]
    rows = torch.randn(2, 5)
    assert speed.batch(rows, rows, 2)[0] is rows


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round `x` to `dtype` after a scaling to its range, in float64."""
    scale = x.abs().max().double() / torch.finfo(dtype).max
    return (x.double() / scale).float().to(dtype).double() * scale


@pytest.mark.parametrize("size", [1e-20, 1.0, 3e30])
@pytest.mark.parametrize("rows", [16, 5])
def test_outputs_and_gradients_are_products_of_rounded_operands(rows, size):
    torch.manual_seed(0)
    x = (size * torch.randn(2, rows, 32)).requires_grad_()
    weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((48, 32), (48,)))
    outer = (torch.randn(2, rows, 48) * torch.logspace(-4, 0, 48)).bfloat16()
    output = float8_linear(x, weight, bias)
    output.backward(outer.float())
    features, weights = (rounded(one.detach(), torch.float8_e4m3fn) for one in (x, weight))
    gradients = rounded(outer.float(), torch.float8_e5m2)
    assert x.grad is not None and weight.grad is not None and bias.grad is not None
    torch.testing.assert_close(output.double(), features @ weights.T + bias.double(), rtol=2**-8, atol=1e-2 * size)
    torch.testing.assert_close(x.grad.double(), gradients @ weights, rtol=2**-7, atol=2e-2)
    expected = gradients.flatten(0, 1).T @ features.flatten(0, 1)
    torch.testing.assert_close(weight.grad.double(), expected, rtol=1e-3, atol=1e-3 * size)
    torch.testing.assert_close(bias.grad, outer.float().sum((0, 1)))


BINOMIAL = np.outer([1, 2, 1], [1, 2, 1]) / 16


@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
def test_blur_is_a_zero_padded_binomial_filter_of_each_channel(stride):
    image = torch.randn(2, 3, 7, 9)
    rows, columns = stride if isinstance(stride, tuple) else (stride, stride)
    expected = np.stack(
        [[convolve(channel, BINOMIAL, mode="constant") for channel in sample] for sample in image.numpy()]
    )
    actual = blur(image, stride).numpy()
    np.testing.assert_allclose(actual, expected[:, :, ::rows, ::columns], atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("kernel, padding", [(1, 0), (3, 1), (5, 2)])
def test_blurred_convolution_equals_blur_then_strided_convolution(kernel, padding, size):
    conv = nn.Conv2d(16, 4, kernel, stride=2, padding=padding, bias=True)
    image = torch.randn(2, 16, size, size)
    expected = F.conv2d(blur(image), conv.weight, conv.bias, 2, padding)
    torch.testing.assert_close(BlurConv2d.of(conv, blur_first=True)(image), expected, atol=1e-5, rtol=1e-5)
    if size > 1:  # a convolution blurred last, and a max-pool, are dense, and blurred with the stride
        expected = blur(F.conv2d(image, conv.weight, conv.bias, 1, padding), 2)
        torch.testing.assert_close(BlurConv2d.of(conv, blur_first=False)(image), expected)
        expected = blur(F.max_pool2d(image, 3, 1, 1), 2)
        assert torch.equal(BlurMaxPool2d.of(nn.MaxPool2d(3, 2, 1))(image), expected)


@pytest.mark.parametrize("by", [blur_by_pools, blur_by_slices])
@pytest.mark.parametrize("shape", [(7, 10), (8, 9), (1, 2)])
@pytest.mark.parametrize("stride", [1, 2, (2, 1), 3])
def test_the_formulas_for_cuda_are_the_blur(by, shape, stride):
    x, same = (torch.randn(2, 3, *shape, dtype=torch.float64).requires_grad_() for _ in range(2))
    same.data.copy_(x.data)
    actual, expected = by(x, stride), blur(same, stride)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(actual)
    (actual * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, same.grad)


def test_factors_are_frozen_as_their_layer_act_where_their_product_is_read_and_tied_layers_stay():
    speed = stack(Factorize(min_features=8))
    words, *linear = nn.Embedding(8, 8), *(nn.Linear(8, 8) for _ in range(5))
    linear[0].requires_grad_(False)
    linear[2].bias, linear[3].weight = linear[1].bias, words.weight
    model = speed.model(nn.Sequential(*linear, words))
    assert [type(layer) is nn.Linear for layer in model[:5]] == [False, True, True, True, False]
    assert model[3].weight is words.weight
    assert not any(parameter.requires_grad for parameter in model[0].parameters())
    assert all(parameter.requires_grad for parameter in model[4].parameters())
    speed.before_step(model, 0, 0.0)
    F.linear(torch.ones(2, 8), model[4].weight, model[4].bias)
    speed.after_step(model)
    speed.verify()


def test_a_blur_outlives_the_meta_device():
    with torch.device("meta"):
        model = stack(BlurPool()).model(nn.Sequential(nn.MaxPool2d(2))).to_empty(device="cpu")
    torch.testing.assert_close(model(torch.ones(1, 1, 6, 6))[0, 0, 1, 1], torch.tensor(1.0))


def test_a_float8_layer_takes_what_a_linear_layer_does_and_hides_no_value_that_is_not_finite():
    layer = stack(Float8()).model(nn.Linear(16, 32))
    assert layer(torch.tensor([float("nan")] + [1.0] * 15)).isnan().all()
    assert layer(torch.randn(3, 16)).dtype == torch.float32
    assert torch.equal(layer(torch.zeros(16)), layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, 16)).dtype == torch.bfloat16
    assert layer(torch.ones(16)).shape == (32,) and layer(torch.ones(0, 3, 16)).shape == (0, 3, 32)
    layer(torch.ones(0, 16)).sum().backward()
    assert not layer.weight.grad.any()


@pytest.mark.parametrize(
    ("layer", "shape", "parts"),
    [
        *((nn.BatchNorm2d(2), (sum(parts), 2, 5, 5), parts) for parts in ([3, 3], [3, 2], [2], [2, 2])),
        (nn.BatchNorm1d(2), (6, 2), [3, 3]),
        (nn.BatchNorm3d(2), (6, 2, 3, 3, 3), [3, 3]),
        (nn.BatchNorm1d(2), (10, 2), [3, 3, 4]),  # a last part of one value a channel joins the one before
        (nn.BatchNorm1d(2), (0, 2), [0]),
    ],
)
def test_parts_are_normalized_separately_and_share_the_momentum(layer, shape, parts):
    torch.manual_seed(0)
    nn.init.uniform_(layer.weight)
    ghost, inputs = stack(GhostBatchNorm(ghost_batch=3)).model(copy.deepcopy(layer)), torch.randn(shape)
    layer.momentum /= len(parts)
    same = partial(torch.testing.assert_close, equal_nan=True)  # of no samples
    same(ghost(inputs), torch.cat([layer(part) for part in inputs.split(parts)]))
    same((ghost.running_mean, ghost.running_var), (layer.running_mean, layer.running_var))
    assert ghost.num_batches_tracked == 1
    same(ghost.eval()(inputs), layer.eval()(inputs))


def test_a_norm_that_divided_no_batch_has_no_effect():
    speed = stack(GhostBatchNorm(ghost_batch=4))
    model = speed.model(nn.Sequential(nn.BatchNorm2d(3)))
    speed.before_step(model, 0, 0.0)
    model(torch.randn(4, 3, 5, 5))
    speed.after_step(model)
    with pytest.raises(NoEffect, match="nothing in this run: ghost_batch_norm; .* batches above ghost_batch"):
        speed.verify()


CASES: list[Any] = [
    (LowPrecisionLayerNorm(), partial(nn.LayerNorm, 8), (28_672, 8)),
    (LowPrecisionGroupNorm(), partial(nn.GroupNorm, 2, 8), (256, 8, 14, 8)),
]


@pytest.mark.parametrize(("method", "make", "shape"), CASES)
def test_output_and_gradients_are_right_to_the_precision_of_the_type(method, make, shape):
    torch.manual_seed(0)
    layer, exact = make(), make().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.rand(8) + 0.5)
    exact.load_state_dict(layer.state_dict())
    speed, plain = stack(method), copy.deepcopy(layer)
    model = speed.model(nn.Sequential(layer))
    inputs, weights = torch.randn(shape), torch.rand(shape)
    speed.before_step(model, 0, 0.0)
    assert torch.equal(model(inputs), plain(inputs))  # without autocast it is the layer
    speed.after_step(model)
    with pytest.raises(NoEffect, match=method.name):
        speed.verify()
    speed.before_step(model, 1, 0.0)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(inputs)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), exact(inputs.double()), atol=0.03, rtol=0.02)
    (output.float() * weights).sum().backward()
    (exact(inputs.double()) * weights).sum().backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and ours.dtype == torch.float32
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0.01, atol=30)  # torch's own are off by 20 %
    speed.after_step(model)
    speed.verify()


def test_weights_of_a_channel_have_mean_0_and_variance_1_but_in_the_last_convolutions_and_a_plain_layer_remains():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv2d(4, 4, 1))
    model = stack(WeightStandardization(ignore_last=2)).model(network)
    assert [parametrize.is_parametrized(layer) for layer in model] == [True, False, False]
    weight, expected = model[0].weight.detach().double().flatten(1), model[0](torch.ones(1, 3, 2, 2))
    torch.testing.assert_close(weight.mean(1), torch.zeros(4).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.square().mean(1), torch.ones(4).double(), atol=1e-6, rtol=0)
    plain = parametrize.remove_parametrizations(model[0], "weight")
    torch.testing.assert_close(plain(torch.ones(1, 3, 2, 2)), expected)
