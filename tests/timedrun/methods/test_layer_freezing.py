"""Layer freezing: which layers, when, and that frozen ones keep their weights."""

import torch
from torch import nn

from timedrun.methods import LayerFreezing, stack


def test_the_number_of_frozen_layers_grows_linearly_and_spares_the_last() -> None:
    method = LayerFreezing(start=0.5)
    assert [method.count(11, progress / 20) for progress in range(8, 21)] == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert LayerFreezing(start=0.0, level=0.3).count(11, 1.0) == 3


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
        [True, True, True, True],  # progress 0.625: a quarter of three
        [False, True, True, True],
        [False, False, True, True],
    ]
    assert speed.report == ["layer_freezing: 2 layers frozen"]


def test_layers_that_a_warm_up_froze_train_again_and_those_frozen_by_others_do_not() -> None:
    tied = nn.Linear(2, 2, bias=False)
    speed = stack(LayerFreezing(start=0.0))
    model = speed.model(nn.Sequential(tied, nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)))
    model[3].weight = tied.weight
    before = speed.state_dict()
    speed.before_step(model, 9, 1.0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"0.weight", "3.bias"}  # the last layer's, one of which the first layer has, too
    speed.load_state_dict(before)
    speed.before_step(model, 0, 0.0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"0.weight", "1.weight", "1.bias", "3.bias"}
    assert speed.report == ["layer_freezing: nothing yet"]
