"""Ghost batch norm: each part as torch's own batch norm normalizes it, running statistics, evaluation."""

import copy

import pytest
import torch
from torch import nn

from timedrun.methods import GhostBatchNorm, stack


@pytest.mark.parametrize(("count", "parts"), [(8, (4, 4)), (7, (4, 3)), (3, (3,)), (9, (3, 3, 3))])
def test_parts_are_normalized_separately_and_share_the_momentum(count: int, parts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3, momentum=0.3)
    with torch.no_grad():
        plain.weight.uniform_()
    ghost = stack(GhostBatchNorm(ghost_batch=4)).model(copy.deepcopy(plain))
    images = torch.randn(count, 3, 5, 5)
    plain.momentum = 0.3 / len(parts)
    expected = torch.cat([plain(part) for part in torch.split(images, list(parts))])
    torch.testing.assert_close(ghost(images), expected)
    torch.testing.assert_close(ghost.running_mean, plain.running_mean)
    torch.testing.assert_close(ghost.running_var, plain.running_var)
    assert ghost.num_batches_tracked == 1
    torch.testing.assert_close(ghost.eval()(images), plain.eval()(images))
    assert ghost.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize(("layer", "shape"), [(nn.BatchNorm1d(2), (6, 2)), (nn.BatchNorm3d(2), (6, 2, 3, 3, 3))])
def test_other_dimensions(layer: nn.Module, shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape)
    expected = torch.cat([copy.deepcopy(layer)(part) for part in inputs.chunk(2)])
    torch.testing.assert_close(stack(GhostBatchNorm(ghost_batch=3)).model(layer)(inputs), expected)
