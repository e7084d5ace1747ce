"""Sharding of a model over all ranks by torch's fully_shard (FSDP2)."""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from timedrun.runner.distributed.process_group import ProcessGroup


def shard(model: nn.Module, layers: Iterable[nn.Module], ranks: ProcessGroup, dtype: torch.dtype | None) -> None:
    """Shard each of `layers` of `model`, then the rest of it, over all ranks, in place, and move it to their device.

    Each rank keeps a part of every parameter in its own type. A layer's parameters are gathered for its forward and
    backward pass, in `dtype` (None: in their own); gradients are reduced in float32, after every backward pass, so that
    no rank holds whole ones. All ranks must have the same weights; build the optimizer afterwards.
    """
    fsdp = importlib.import_module("torch.distributed.fsdp")  # takes half a second, which other runs need not wait
    mesh = torch.distributed.device_mesh.init_device_mesh(ranks.device.type, (ranks.world_size,))
    # The layers' float32 inputs, such as angles of positions, keep their type.
    policy = fsdp.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*layers, model):
        fsdp.fully_shard(module, mesh=mesh, mp_policy=policy)


@contextmanager
def no_gradients(model: nn.Module) -> Iterator[None]:
    """Turn gradients off for forward passes of `model`, by inference mode unless it is sharded: what fully_shard
    gathers in inference mode cannot be used in training."""
    reshard = getattr(model, "reshard", None)
    if reshard is None:
        with torch.inference_mode():
            yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
    reshard()  # without a backward pass the outermost parameters would stay whole, and become stale
