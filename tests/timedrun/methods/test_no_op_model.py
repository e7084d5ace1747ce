"""No-op model: the shapes of a model without its work, and that no result of it counts."""

import pytest
import torch
from torch import nn

from image_classification import SPEC
from image_classification.configs import synthetic_smoke
from image_classification.train import train
from judging.ground.errors import TimedrunError
from mlevents import keys, record
from timedrun.config_choice import with_change
from timedrun.methods import BlurPool, NoOpModel, stack


def test_outputs_have_the_shape_of_the_models_and_one_parameter_a_gradient():
    model, words = NoOpModel().model(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 7)))
    assert model(torch.zeros(3, 2, 8, 8)).shape == (3, 7)
    assert model(torch.zeros(3, 6, dtype=torch.int64)).shape == (3, 6, 7)
    assert words == "one scalar in place of 67 parameters"
    nn.functional.mse_loss(model(torch.zeros(3, 1)), torch.ones(3, 7)).backward()
    ((value),) = model.parameters()
    assert value.grad == -2


def test_it_replaces_the_model_after_all_other_surgery():
    speed = stack(NoOpModel(), BlurPool())
    speed.model(nn.Sequential(nn.Conv2d(16, 16, 3, 2), nn.Linear(4, 5)))
    assert [line.split(":")[0] for line in speed.report] == ["blurpool", "no_op_model"]
    with pytest.raises(TimedrunError, match="no_op_model is for profiling: no result counts"):
        speed.verify()


def test_a_run_that_would_reach_its_target_is_aborted(make_run, tmp_path):
    config = with_change(synthetic_smoke(), ("+", "no_op_model", {}))  # a target below chance
    with pytest.raises(TimedrunError, match="no result counts"), make_run(config, SPEC) as run:
        train(config, run)
    assert record.read(tmp_path / "result_0.txt").status == keys.ABORTED
    assert run.position.step == 8
