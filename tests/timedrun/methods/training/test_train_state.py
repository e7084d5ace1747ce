"""The digest of what training changed: equal for equal numbers, different for any other, whatever surrounds them."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from timedrun.methods.training.train_state import TrainState


def digest(**parts: dict[str, Any]) -> str:
    train_state = TrainState()
    train_state.add(**{name: SimpleNamespace(state_dict=partial(dict, state)) for name, state in parts.items()})
    return train_state.digest()


def test_the_digest_depends_on_trained_numbers_and_not_on_random_generators():
    def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        return model, optimizer

    digests = []
    for _ in range(2):
        train_state = TrainState()
        model, optimizer = trained()
        train_state.add(model=model, optimizer=optimizer)
        torch.rand(5)
        digests.append(train_state.digest())
    assert digests[0] == digests[1]
    assert len({digest(part={"a": torch.tensor(1.0, dtype=torch.bfloat16)}) for _ in range(2)}) == 1
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nextafter(model[0].weight[0, 0], torch.tensor(9.0))
    assert train_state.digest() != digests[0]


PART = {"a": torch.tensor([1.0, 2.0])}


@pytest.mark.parametrize(
    ("parts", "others"),
    [
        ({"part": PART}, {"part": {"a": torch.tensor([1.0, 2.0, 3.0])}}),
        ({"part": PART}, {"part": {"a": torch.tensor([[1.0, 2.0]])}}),
        ({"part": PART}, {"part": {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)}}),
        ({"part": PART}, {"part": {"a": [1.0, 2.0]}}),
        ({"part": PART}, {"part": {"b": PART["a"]}}),
        ({"part": PART}, {"part": PART | {"b": 0}}),
        ({"part": {"a": ["b", "c"]}}, {"part": {"a": ["bc"]}}),
        ({"one": {"a": 1}, "two": {}}, {"one": {}, "two": {"a": 1}}),
        ({"part": {"a": torch.zeros(0), "b": torch.tensor(1.0)}}, {"part": {"a": torch.zeros(1)}}),
    ],
)
def test_another_shape_type_name_part_or_separation_is_another_digest(parts, others):
    assert digest(**parts) != digest(**others)
