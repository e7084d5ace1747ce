"""Settings of the methods: a value out of its range is refused by the name of the setting."""

import re
from typing import Any

import pytest

from timedrun.methods import REGISTRY, SequenceLengthWarmup

NAN, INF = float("nan"), float("inf")
WRONG: dict[str, dict[str, list[Any]]] = {
    "alibi": {"max_sequence_length": [-1], "train_sequence_length_scaling": [0.0, 0.3, 1.5, -0.25]},
    "augmix": {
        "severity": [0.0, 10.1, NAN],
        "depth": [-1],
        "operations": ["most"],
        "width": [0],
        "alpha": [0.0, INF],
    },
    "colout": {"p_row": [-0.1, 1.0, NAN], "p_col": [-0.1, 1.0, NAN]},
    "cutmix": {"alpha": [0]},
    "cutout": {"num_holes": [0], "length": [0.0, 1.1, NAN]},
    "ema": {"half_life": [0.0, NAN], "update_interval": [0]},
    "factorize": {"latent_channels": [0], "latent_features": [1.5], "min_channels": [0], "min_features": [0]},
    "ghost_batch_norm": {"ghost_batch": [1]},
    "gradient_clipping": {"threshold": [0.0, NAN], "by": ["length"]},
    "gyro_dropout": {"p": [0.0, 1.0], "tau": [3, 0]},
    "label_smoothing": {"smoothing": [-0.1, 1.1, NAN]},
    "layer_freezing": {"start": [-0.1, 1.0], "level": [0.0, 1.1]},
    "mixup": {"alpha": [0.0, -1.0, INF, NAN]},
    "progressive_resizing": {
        "start": [0.0, 1.1],
        "delay": [-0.1, 0.9],
        "finetune": [1.5],
        "increment": [0],
        "interpolation": ["loadr"],
        "where": ["loadr"],
    },
    "randaugment": {"severity": [0.0, 10.1, NAN], "depth": [-1, 0], "operations": ["most"]},
    "sam": {"rho": [0.0], "epsilon": [-1.0], "interval": [0]},
    "selective_backprop": {"keep": [1.0], "start": [0.9], "end": [1.5], "scale": [0.0], "interrupt": [1]},
    "sequence_length_warmup": {
        "steps": ["many"],
        "duration": [0.0, 1.5],
        "min_length": [0, 1024],
        "step_size": [0],
        "pacing": ["cosine"],
    },
    "squeeze_excite": {"latent_channels": [0, 2.5], "min_channels": [0]},
    "stochastic_depth": {"rate": [0.0, 1.0], "kind": ["layer"], "distribution": ["cubic"]},
    "swa": {"start": [-0.1, 0.98], "end": [1.0], "interval": [0.0]},
    "weight_standardization": {"ignore_last": [-1]},
    "whitening": {"eps": [0.0]},
}
REQUIRED = {"sequence_length_warmup": {"steps": 14_000}}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_out_of_its_range_is_refused_by_name(name: str) -> None:
    for field, values in WRONG[name].items():
        for value in values:
            words = rf"^{name}\.{field} must be .+, not {re.escape(repr(value))}$"
            with pytest.raises(ValueError, match=words):
                REGISTRY[name](**REQUIRED.get(name, {}) | {field: value})


@pytest.mark.parametrize("values", [{"step_size": 2000}, {"steps": 300, "pacing": "composer_2022"}, {"steps": 3}])
def test_a_warm_up_too_short_for_its_increments_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="too few for an increment, or for each of them"):
        SequenceLengthWarmup(**{"steps": 14_000, **values})
