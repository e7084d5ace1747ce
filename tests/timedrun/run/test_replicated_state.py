"""What ranks hold alike is found bit for bit, and put back where it was."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from tests.timedrun.distributed.thread_ranks import on_all
from timedrun.distributed.process_group import ProcessGroup
from timedrun.run import replicated_state
from timedrun.run.replicated_state import checksums, merge, split


def state_of(rank: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 5, 66)).sum().backward()
    optimizer.step()
    torch.manual_seed(rank)
    random = [torch.get_rng_state(), (1, "a")]
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random}


def split_on_two() -> list[tuple[Any, dict[str, torch.Tensor]]]:
    states = [state_of(0), state_of(1)]  # here, since the ranks' threads share one generator
    return on_all(2, lambda ranks: split(states[ranks.rank], ranks))


def test_weights_and_moments_but_not_random_generators_are_split_off_and_merged_as_they_were():
    replicas = split_on_two()
    for own, tensors in replicas:
        assert set(tensors) == {
            "state['model']['0.weight']",
            "state['model']['2.weight']",
            *(f"state['optimizer']['state'][{n}]['{m}']" for n in (0, 4) for m in ("exp_avg", "exp_avg_sq")),
        }
        assert own["model"]["0.weight"] is None and own["random"][1] == (1, "a")
    merged, whole = merge(*replicas[1]), state_of(1)
    assert type(merged["model"]) is OrderedDict
    assert merged["model"]._metadata == whole["model"]._metadata
    assert all(torch.equal(merged["model"][name], tensor) for name, tensor in whole["model"].items())
    assert torch.equal(merged["random"][0], whole["random"][0])
    assert torch.equal(merged["optimizer"]["state"][4]["exp_avg"], whole["optimizer"]["state"][4]["exp_avg"])


def test_one_rank_and_ranks_of_other_structure_share_nothing():
    alone = ProcessGroup(0, 1, 0, torch.device("cpu"))
    assert split(state_of(0), alone)[1] == {}
    found = on_all(2, lambda ranks: split({"a": torch.zeros(1000 + ranks.rank)}, ranks))
    assert [tensors for _, tensors in found] == [{}, {}]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.uint8, torch.complex64]
)
def test_a_bit_or_an_order_that_differs_changes_the_checksum(dtype, monkeypatch):
    monkeypatch.setattr(replicated_state, "COLUMNS", 64)  # several rows
    tensor = (torch.arange(400) % 7).reshape(20, 20).to(dtype)
    swapped, changed = tensor.clone(), tensor.clone()
    swapped[0, 0], swapped[19, 19] = tensor[0, 1], tensor[0, 0]
    changed[10, 3] = tensor[10, 3] == 0
    found = checksums([tensor, tensor.T.contiguous().T, swapped, changed])
    assert found[0] == found[1]
    assert found[0] != found[2] and found[0] != found[3]
