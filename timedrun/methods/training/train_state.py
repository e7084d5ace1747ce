"""State that training changes: warm-up restores it and a checkpoint holds it."""

from __future__ import annotations

import copy
import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer


class Stateful(Protocol):
    """Describe an object whose state can be saved and loaded: model, optimizer, method stack.

    Examples:
        >>> def size(part: Stateful) -> int:
        ...     return len(part.state_dict())
        >>> size(nn.Linear(4, 2))
        2
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


def random_state() -> dict[str, Any]:
    """Return the state of every random generator that training may use: Python, NumPy's global, torch CPU, CUDA.

    Examples:
        >>> state = random_state()
        >>> first = torch.rand(1)
        >>> set_random_state(state)
        >>> torch.equal(torch.rand(1), first)
        True
    """
    kind, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *(float(r) for r in rest)],
        "torch": torch.get_rng_state(),
        "cuda": list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
        **({"mps": torch.mps.get_rng_state()} if torch.backends.mps.is_available() else {}),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the result of `random_state`.

    Examples:
        >>> set_random_state(random_state())  # changes nothing
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices) with `seed`.

    Examples:
        >>> seed_everything(1)
        >>> first = random.random(), torch.rand(1).item()
        >>> seed_everything(1)
        >>> first == (random.random(), torch.rand(1).item())
        True
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


class TrainState:
    """Track named stateful parts of a run and the random generators.

    Examples:
        >>> state, model = TrainState(), nn.Linear(4, 2)
        >>> state.add(model=model)
        >>> saved, before = state.state(), state.digest()
        >>> _ = nn.init.zeros_(model.weight)
        >>> state.restore(saved)
        >>> state.digest() == before
        True
    """

    def __init__(self) -> None:
        self.parts: dict[str, Stateful] = {}

    def add(self, **parts: Stateful) -> None:
        """Track `parts`; a name can be used once."""
        for name, part in parts.items():
            if name in self.parts:
                raise ValueError(f"'{name}' is already tracked")
            self.parts[name] = part

    def state(self) -> dict[str, Any]:
        """Return a copy of every part's state, which later training does not change."""
        return copy.deepcopy(self.live_state())

    def live_state(self) -> dict[str, Any]:
        """Return every part's state without a copy, to be saved before training continues."""
        return {"parts": self._parts(), "random": random_state()}

    def digest(self) -> str:
        """Return the SHA-256 of every part's state, without random generators: equal if training came to the same
        numbers, bit for bit. Of a sharded part, it is that of this rank's shards. One tensor at a time is copied."""
        content = hashlib.sha256()
        _digest_value(content, self._parts())
        return content.hexdigest()

    def _parts(self) -> dict[str, Any]:
        """Return every part's state, with this rank's shard in place of each sharded tensor."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        own: dict[str, Any] = map_leaves(states, lambda _, leaf: leaf.to_local() if is_sharded(leaf) else leaf)
        return own

    def restore(self, state: dict[str, Any]) -> None:
        """Load `state` into every part and the generators."""
        if missing := set(self.parts) ^ set(state["parts"]):
            raise ValueError(f"state and run do not hold the same parts: {', '.join(sorted(missing))}")
        for name, part in self.parts.items():
            _load(part, copy.deepcopy(state["parts"][name]))
        set_random_state(state["random"])


def is_sharded(value: object) -> bool:
    """Return True for a DTensor, such as fully_shard makes.

    Examples:
        >>> is_sharded(torch.zeros(2))
        False
    """
    return hasattr(value, "to_local")  # its import takes half a second


def _load(part: Stateful, state: dict[str, Any]) -> None:
    """Load `state`, in which this rank's shards stand for sharded tensors."""
    if isinstance(part, nn.Module):
        for name, whole in part.state_dict().items():
            if is_sharded(whole):
                state[name] = _shard_of(state[name], whole)
    part.load_state_dict(state)
    if isinstance(part, Optimizer):
        for parameter, values in part.state.items():
            if is_sharded(parameter):
                moments = {name: value for name, value in values.items() if value.dim()}  # not the number of steps
                values |= {name: _shard_of(value, parameter) for name, value in moments.items()}


def _shard_of(own: torch.Tensor, whole: Any) -> torch.Tensor:
    """Return a DTensor like `whole` with this rank's shard `own`."""
    mesh, placements = whole.device_mesh, whole.placements
    shard: torch.Tensor = type(whole).from_local(
        own, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return shard


def _digest_value(content: hashlib._Hash, value: object) -> None:
    """Add `value` with its kind and size, so that no two structures have the same bytes."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().flatten()
        content.update(f"tensor {value.dtype} {list(value.shape)}:".encode())
        content.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        content.update(f"mapping {len(value)}:".encode())
        for key, item in value.items():
            content.update(f"{key!r}=".encode())
            _digest_value(content, item)
    elif isinstance(value, list | tuple):
        content.update(f"sequence {len(value)}:".encode())
        for item in value:
            _digest_value(content, item)
    else:
        content.update(f"{type(value).__name__} {value!r};".encode())


def map_leaves(value: Any, function: Callable[[str, Any], Any], place: str = "state") -> Any:
    """Return `value`, dicts and lists, with `function(place, leaf)` in place of each leaf.

    Examples:
        >>> map_leaves({"a": [1, 2]}, lambda place, leaf: f"{place} = {leaf}")
        {'a': ["state['a'][0] = 1", "state['a'][1] = 2"]}
    """
    if type(value) in (dict, OrderedDict):
        mapped = copy.copy(value)  # keeps the `_metadata` of a module's state_dict
        for key, item in value.items():
            mapped[key] = map_leaves(item, function, f"{place}[{key!r}]")
        return mapped
    if type(value) in (list, tuple):
        return type(value)(map_leaves(item, function, f"{place}[{number}]") for number, item in enumerate(value))
    return function(place, value)
