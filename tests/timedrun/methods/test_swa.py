"""SWA: the mean against torch.optim.swa_utils, its times, and the weights it replaces."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from timedrun.methods import SWA, stack


def trained(method: SWA, steps: int) -> tuple[list[torch.Tensor], nn.Module, list[str]]:
    """Return the weights before each step of a walk of random steps, the model at its end and the report."""
    torch.manual_seed(0)
    model, speed = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), stack(method)
    seen = []
    for step in range(steps):
        seen.append(model[0].weight.detach().clone())
        speed.before_step(model, step, step / steps)
        if speed.report != [f"{method.name}: nothing yet"]:
            break
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        speed.after_step(model)
    return seen, model, speed.report


def test_the_weights_become_the_mean_that_torch_computes() -> None:
    seen, model, report = trained(SWA(start=0.5, end=0.8, interval=0.1), 20)
    layer = nn.Linear(3, 2)
    expected = AveragedModel(layer)
    for weight in (seen[10], seen[12], seen[14]):  # at 0.5, 0.6 and 0.7
        with torch.no_grad():
            layer.weight.copy_(weight)
        expected.update_parameters(layer)
    torch.testing.assert_close(model[0].weight, expected.module.weight)
    assert report == ["swa: the mean of 3 points took the weights' place"] and len(seen) == 17


def test_a_progress_that_changes_by_epochs_gives_one_point_an_epoch() -> None:
    speed, model = stack(SWA(start=0.5, end=0.9)), nn.Linear(2, 2)
    for step in range(100):
        speed.before_step(model, step, step // 10 / 10)
        speed.after_step(model)
    assert speed.report == ["swa: the mean of 4 points took the weights' place"]


def test_half_precision_is_averaged_in_float32() -> None:
    speed, model = stack(SWA(start=0.0, end=0.9)), nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    values = [1.0, 1.0078125, 1.0078125]  # bf16's step at 1 is 0.0078125
    for step, value in enumerate(values):
        with torch.no_grad():
            model.weight.fill_(value)
        speed.before_step(model, step, step / 4)
        speed.after_step(model)
    assert speed.state_dict()["swa"]["mean"]["weight"].item() == pytest.approx(sum(values) / 3, abs=1e-6)
