"""Factorize: products of the factors, the ranks chosen, and the layers left as they are."""

import torch
from torch import nn

from timedrun.methods import Factorize, stack
from timedrun.methods.factorize import factors, rank_of


def test_the_product_is_the_nearest_of_its_rank() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 9)
    last, first = factors(weight, 4)
    assert last.shape == (6, 4) and first.shape == (4, 9)
    dropped = torch.linalg.svdvals(weight)[4:]  # Eckart and Young: the error of the nearest
    torch.testing.assert_close(torch.linalg.norm(weight - last @ first), torch.linalg.norm(dropped))


def test_layers_of_low_rank_compute_the_same_after_it() -> None:
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(8, 16, 3, stride=2, padding=1, dilation=2), nn.Linear(16, 12)
    with torch.no_grad():
        convolution.weight.copy_((torch.randn(16, 2) @ torch.randn(2, 72)).view(16, 8, 3, 3))
        linear.weight.copy_(torch.randn(12, 3) @ torch.randn(3, 16))
    network = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear)
    images = torch.randn(4, 8, 9, 9)
    expected = network(images)
    model = stack(Factorize(min_channels=8, min_features=8)).model(network)
    assert [tuple(p.shape) for p in model[0].parameters()] == [(2, 8, 3, 3), (16, 2, 1, 1), (16,)]  # type: ignore[index]
    torch.testing.assert_close(model(images), expected, atol=1e-4, rtol=1e-4)


def test_ranks_that_save_nothing_leave_the_layer() -> None:
    assert (rank_of(0.25, 256, 512), rank_of(128, 256, 256), rank_of(127, 256, 256)) == (64, 0, 127)
    assert rank_of(0.9, 64, 64, taps=9) == 57 and rank_of(0.9, 64, 64) == 0  # 57 (64 * 9 + 64) < 64 * 9 * 64


def test_a_layer_used_twice_stays_one_and_unsuitable_ones_are_left() -> None:
    shared, grouped = nn.Linear(300, 300), nn.Conv2d(256, 256, 1, groups=2)
    model = stack(Factorize()).model(nn.Sequential(shared, shared, grouped, nn.Linear(300, 10)))
    assert model[0] is model[1] and model[2] is grouped and isinstance(model[3], nn.Linear)  # type: ignore[index]


def test_weights_tied_to_another_layer_stay_tied() -> None:
    words, head = nn.Embedding(600, 512), nn.Linear(512, 600, bias=False)
    head.weight = words.weight
    model = stack(Factorize()).model(nn.Sequential(words, nn.Linear(512, 512), head))
    assert isinstance(model[1], nn.Sequential) and model[2].weight is model[0].weight  # type: ignore[index, union-attr]


def test_it_works_without_memory() -> None:
    with torch.device("meta"):
        model = stack(Factorize()).model(nn.Sequential(nn.Linear(512, 512)))
    assert all(parameter.is_meta for parameter in model.parameters())
