"""Changes of a training step of one's own, measured in this process."""

import pytest
import torch
from torch import nn

from tests.timedrun.analysis.ticking import Clock
from timedrun.analysis.own_step import TrainStep, choose


def test_the_fastest_of_a_users_builds_is_chosen_and_losses_are_compared() -> None:
    clock = Clock()

    def build(seconds: float = 0.1, smoothing: float = 0.0, workers: int = 0, fails: bool = False) -> TrainStep:
        torch.manual_seed(1)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        images, labels = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
        if fails:
            raise RuntimeError("planted")

        def train_step() -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clock.now += seconds / (1 + workers)
            return loss.detach()

        return train_step

    changes = {
        "fused": {"seconds": 0.05},
        "smoothing": {"smoothing": 0.1},
        "one worker": {"workers": 1},
        "three workers": {"workers": 3},
        "broken": {"fails": True},
    }
    selection = choose(build, changes, monotonic=clock)
    assert selection.kept == ["fused", "three workers"] and selection.settings == {"seconds": 0.05, "workers": 3}
    assert selection.speed_up is not None and selection.speed_up.value == pytest.approx(8, rel=0.01)
    assert selection.evidence["smoothing"].reason.startswith("it changes the loss")
    assert selection.evidence["broken"].reason == "it fails: RuntimeError: planted"
    assert selection.evidence["one worker"].reason == "three workers is faster"
