"""Every method on small models of timm's registry: it acts, or refuses by its name; never silent, never a crash."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods import REGISTRY, Method, NoEffect, stack

FAMILIES = ("test_coatnet", "test_efficientnet_gn", "test_resnet")
"""A model of each; 45 passed in benchmarks/timm_models.py of commit 475baedb."""
SETTINGS: dict[str, dict[str, Any]] = {
    "factorize": {"min_channels": 32, "min_features": 32},
    "ghost_batch_norm": {"ghost_batch": 2},
    "layer_freezing": {"start": 0.0},
    "squeeze_excite": {"min_channels": 32},
    "stochastic_depth": {"kind": "block", "rate": 0.9},
}
"""Settings that act on one step of a small model, at 0.9 of a run."""
SAME_OUTPUT = ("channels_last", "layer_freezing", "whitening")


def one_step(model: nn.Module, size: int, *methods: Method) -> Tensor:
    """Train `model` for a step and return its outputs; raise what the methods refuse."""
    torch.manual_seed(0)
    speed = stack(*methods)
    model = speed.model(model).train()
    speed.before_step(model, 0, 0.9)
    inputs, targets = speed.batch(torch.randn(4, 3, size, size), torch.arange(4), 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=any("low_precision" in method.name for method in methods)):
        outputs: Tensor = model(inputs)
    F.cross_entropy(outputs.float(), targets).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    speed.after_step(model)
    speed.verify()
    return outputs.detach()


def outcomes(name: str) -> Iterator[tuple[str, str]]:
    """Return, for each method, its name and what it did to the model `name`: "acts", its refusal, or a "FAILURE"."""
    import timm

    torch.manual_seed(0)
    with torch.device("meta"):
        shape = timm.create_model(name)
    embeds = hasattr(shape, "patch_embed") or hasattr(getattr(shape, "stem", None), "img_size")  # MLP-Mixer's is a stem
    sized = embeds or type(shape).__name__ == "MaxxVit"
    size = 64
    plain = timm.create_model(name, num_classes=4, **({"img_size": size} if sized else {}))
    for parameter in plain.parameters():
        if not parameter.any():  # residual branches that begin at 0 would hide what happens in them
            nn.init.constant_(parameter, 0.5)
    expected = one_step(copy.deepcopy(plain), size)
    for method_name, kind in REGISTRY.items():
        if kind.model is Method.model or kind.profiling:
            continue
        method = kind(**SETTINGS.get(method_name, {}))
        try:
            same = torch.equal(one_step(copy.deepcopy(plain), size, method), expected)
            yield method_name, "FAILURE: nothing changed" if same and method_name not in SAME_OUTPUT else "acts"
        except (NoEffect, ValueError) as refusal:
            yield method_name, str(refusal) if method_name in str(refusal) else f"FAILURE: {refusal}"
        except (RuntimeError, TypeError, AttributeError, AssertionError, StopIteration) as error:
            yield method_name, f"FAILURE: {error!r}"


@pytest.mark.parametrize("name", FAMILIES)
def test_it_acts_or_refuses_by_name(torchvision, name):
    pytest.importorskip("timm")
    done = dict(outcomes(name))
    assert not {method: outcome for method, outcome in done.items() if outcome.startswith("FAILURE")}
    acting = {method for method, outcome in done.items() if outcome == "acts"}
    assert {"channels_last", "layer_freezing"} <= acting and len(done) == 17, done
