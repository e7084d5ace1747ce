"""The surgery and the hook of MethodTemplate, each against numbers known without it; run it with pytest."""

import torch
from torch import nn

from timedrun.commands.method_template.method_template import MethodTemplate
from timedrun.methods import stack


def test_the_last_linear_layer_begins_smaller() -> None:
    last = nn.Linear(2, 2)
    before = last.weight.clone()
    stack(MethodTemplate(shrink=4)).model(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), last))
    torch.testing.assert_close(last.weight * 4, before)


def test_the_weights_return_half_way_and_a_resumed_run_does_the_same() -> None:
    net, speed = nn.Linear(1, 1, bias=False), stack(MethodTemplate(shrink=1, interval=2))
    speed.model(net)
    nn.init.zeros_(net.weight)
    for step in range(2):
        speed.before_step(net, step, step / 2)
        with torch.no_grad():
            net.weight += 1.0  # an optimizer's step
        speed.after_step(net)
    assert net.weight.item() == 1.5  # half-way between 2 and the 1 after the first step
    speed.verify()
    resumed = stack(MethodTemplate(shrink=1, interval=2))
    resumed.load_state_dict(speed.state_dict())
    assert resumed.state_dict() == speed.state_dict()
