"""Every method on small models of timm's registry: it acts, or refuses by its name; never silent, never a crash."""

from types import ModuleType

import pytest

FAMILIES = ("test_byobnet", "test_coatnet", "test_efficientnet_gn", "test_resnet", "test_vit3")
"""A model of each; benchmarks/timm_models.py has 45."""


@pytest.mark.parametrize("name", FAMILIES)
def test_it_acts_or_refuses_by_name(torchvision: ModuleType, name: str) -> None:
    pytest.importorskip("timm")
    from benchmarks.timm_models import outcomes

    done = dict(outcomes(name))
    assert not {method: outcome for method, outcome in done.items() if outcome.startswith("FAILURE")}
    acting = {method for method, outcome in done.items() if outcome == "acts"}
    assert {"channels_last", "layer_freezing"} <= acting and len(done) == 16, done
