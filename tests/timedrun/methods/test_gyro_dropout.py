"""Gyro dropout: every mask is used once, each in its part of the run and of the batch, at the rate given."""

import pytest
import torch
from torch import nn

from timedrun.methods import GyroDropout, stack
from timedrun.methods.method import Position


def test_each_mask_is_used_in_one_part_of_the_run() -> None:
    method = GyroDropout(sigma=8, tau=2)
    parts = [method.chosen(Position(0, progress / 4, seed=5)) for progress in range(4)]
    assert sorted(sum(parts, ())) == list(range(8)) and method.chosen(Position(9, 1.0, seed=5)) == parts[3]
    assert parts != [method.chosen(Position(0, progress / 4, seed=6)) for progress in range(4)]
    assert method.chosen(Position(3, 0.1, seed=5, rank=3)) == parts[0]


@pytest.mark.parametrize("shape", [(8, 64), (8, 5, 64), (8, 64, 3, 3)])
def test_a_batch_is_divided_among_the_masks_in_use(shape: tuple[int, ...]) -> None:
    speed = stack(GyroDropout(p=0.25, sigma=8, tau=2), seed=1)
    model = speed.model(nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.1)))
    seen = []
    for step in range(4):
        speed.before_step(model, step, step / 4)
        output = model[0](torch.ones(shape))  # type: ignore[index, operator]
        assert output.unique().tolist() == pytest.approx([0, 4 / 3])
        rows = output if len(shape) == 2 else output.amax(dim=(2, 3) if len(shape) == 4 else 1)
        assert torch.equal(rows[0], rows[3]) and torch.equal(rows[4], rows[7]) and not torch.equal(rows[3], rows[4])
        seen += [rows[0], rows[4]]
    kept = torch.stack(seen).bool().float()
    assert len(kept.unique(dim=0)) == 8 and 0.65 < kept.mean() < 0.85
    assert torch.equal(model.eval()(torch.ones(shape)), torch.ones(shape))


def test_masks_follow_the_model_to_its_device() -> None:
    speed = stack(GyroDropout(sigma=4, tau=2))
    model = speed.model(nn.Sequential(nn.Dropout()))
    speed.before_step(model, 0, 0.0)
    assert model(torch.ones(4, 8, device="meta")).is_meta
    assert model(torch.ones(4, 8)).unique().tolist() == [0, 2]


def test_layers_have_masks_of_their_own() -> None:
    speed = stack(GyroDropout(sigma=4, tau=1))
    model = speed.model(nn.Sequential(nn.Dropout(), nn.Dropout()))
    speed.before_step(model, 0, 0.0)
    first, second = (layer(torch.ones(1, 64)) for layer in model)  # type: ignore[union-attr, operator]
    assert not torch.equal(first, second)


def test_other_masks_compile_no_further_graph() -> None:
    speed, graphs = stack(GyroDropout(p=0.25, sigma=12, tau=2)), list[torch.fx.GraphModule]()
    model = speed.model(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)))
    model.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward)  # type: ignore[func-returns-value]
    outputs, compiled = [], []
    for step in range(6):
        speed.before_step(model, step, step / 6)
        outputs.append(model(torch.ones(2, 8)) != 0)
        compiled.append(len(graphs))
    assert len(torch.stack(outputs).unique(dim=0)) == 6
    assert len(set(compiled[1:])) == 1, compiled  # one graph more for a layer that had masks before
