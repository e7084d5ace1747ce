"""Layer freezing: which layers, when, and that frozen ones keep their weights."""

import pytest
import torch
from torch import nn

from timedrun.methods import LayerFreezing, NoEffect, stack


def test_the_number_of_frozen_layers_grows_linearly_and_spares_the_last() -> None:
    method = LayerFreezing(start=0.5)
    assert [method.count(10, progress / 20) for progress in range(8, 21)] == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert LayerFreezing(start=0.0, level=0.3).count(10, 1.0) == 3


def test_frozen_layers_keep_their_weights_and_the_others_train() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)
    )
    speed = stack(LayerFreezing(start=0.5))
    model = speed.model(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    changed = []
    for step in range(8):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        speed.before_step(model, step, step / 8)
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        speed.after_step(model)
        changed.append([not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)])
    layers = [[one[index] for index in (0, 2, 4, 6)] for one in changed]
    assert layers[4:] == [
        [True, True, True, True],
        [False, True, True, True],  # progress 0.625: a quarter
        [False, False, True, True],
        [False, False, False, True],
    ]
    assert speed.report == ["layer_freezing: 3 layers frozen"]


@pytest.mark.parametrize("values", [{"start": 1.0}, {"start": -0.1}, {"level": 0.0}, {"level": 1.5}])
def test_settings_that_mean_nothing_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="layer_freezing"):
        LayerFreezing(**values)


def test_a_model_of_one_layer_has_nothing_to_freeze() -> None:
    with pytest.raises(NoEffect, match="layer_freezing"):
        stack(LayerFreezing()).model(nn.Linear(2, 2))
