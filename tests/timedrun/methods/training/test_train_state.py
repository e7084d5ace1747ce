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


def test_the_digest_depends_on_every_bit_and_not_on_random_generators():
    model, train_state = torch.nn.Linear(3, 2), TrainState()
    train_state.add(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    before = train_state.digest()
    torch.rand(5)
    assert train_state.digest() == before
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
    assert train_state.digest() != before
    assert len({digest(part={"a": torch.tensor(1.0, dtype=torch.bfloat16)}) for _ in range(2)}) == 1


PART = {"a": torch.tensor([1.0, 2.0])}


@pytest.mark.parametrize(
    ("parts", "others"),
    [
        ({"part": PART}, {"part": {"a": torch.tensor([[1.0, 2.0]])}}),
        ({"part": PART}, {"part": {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)}}),
        ({"part": PART}, {"part": {"a": [1.0, 2.0]}}),
        ({"part": PART}, {"part": {"b": PART["a"]}}),
        ({"part": {"a": ["b", "c"]}}, {"part": {"a": ["bc"]}}),
        ({"one": {"a": 1}, "two": {}}, {"one": {}, "two": {"a": 1}}),
    ],
)
def test_another_shape_type_name_part_or_separation_is_another_digest(parts, others):
    assert digest(**parts) != digest(**others)
