"""Bytes saved for the backward pass against a count by hand, and the sum of a rank's memory."""

import torch
from torch import Tensor, nn

from timedrun.preflight.memory import RankMemory, saved_bytes


def inputs() -> tuple[Tensor]:
    return (torch.zeros(3, 4),)


def test_each_saved_tensor_counts_once_and_parameters_do_not() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    # Inputs of both layers; the second one's is what ReLU saves, too.
    assert saved_bytes(build, inputs) == 4 * (3 * 4 + 3 * 8)
    # Under autocast in 2 bytes each, and the copy of the second weight; no gradient passes through the first.
    assert saved_bytes(build, inputs, torch.bfloat16) == 2 * (3 * 4 + 3 * 8 + 8 * 2)


def test_a_model_larger_than_any_memory_has_a_size() -> None:
    assert saved_bytes(lambda: nn.Linear(4, 2**50), inputs) == 4 * 3 * 4


def test_the_memory_of_a_rank_is_the_sum_of_its_parts() -> None:
    memory = RankMemory(parameters=2**30, gathered=0, gradients=2**30, optimizer=2**31, activations=2**29)
    assert memory.total == 4.5 * 2**30
    assert str(memory) == "4.5 GiB (parameters 1.0, gradients 1.0, optimizer 2.0, activations 0.5)"
    small = RankMemory(parameters=2**20, gathered=0, gradients=0, optimizer=0, activations=0)
    assert str(small) == "1.0 MiB (parameters 1.0)"
