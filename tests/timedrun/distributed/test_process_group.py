"""Ranks from variables, and the wrapping of a model for DDP."""

import pytest
import torch
from torch import nn

from timedrun.distributed.process_group import DDPInner, ProcessGroup, require_warm_up_for_ddp
from timedrun.errors import UsageError
from timedrun.methods.method import unwrapped

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT='x'"),
    ],
)
def test_invalid_variables_are_named(variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        ProcessGroup.join("cpu")


def test_without_variables_there_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert ProcessGroup.join("cpu") == ProcessGroup(0, 1, 0, CPU)


def test_the_inner_module_of_ddp_does_not_change_a_models_names() -> None:
    model = nn.Linear(2, 2)
    assert unwrapped(DDPInner(model)) is model
    assert DDPInner(model)(torch.ones(1, 2)).shape == (1, 2)


def test_more_than_two_ranks_need_a_warm_up_step() -> None:
    for steps, world_size in ((0, 1), (0, 2), (1, 3), (2, 8)):
        require_warm_up_for_ddp(steps, world_size)
    with pytest.raises(UsageError, match="3 ranks without a warm-up step.*order of its gradient.*--warm-up-steps 1"):
        require_warm_up_for_ddp(0, 3)
