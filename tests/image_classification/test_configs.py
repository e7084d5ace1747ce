"""Published baselines as configs: every hyper-parameter as its source has it."""

from operator import attrgetter
from typing import Any

import pytest

from image_classification import configs
from judging.ground.config_values import flatten

SGD = {"kind": "sgd", "peak_lr": 0.5, "momentum": 0.9, "nesterov": False, "weight_decay": 2e-5}
LAMB = {"kind": "lamb", "peak_lr": 5e-3, "momentum": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.02}
PYTORCH: dict[str, Any] = {
    "global_batch": 8 * 128,
    "precision": "fp32",
    "loss": "cross_entropy",
    "optimizer": {**SGD, "decay_norms_and_biases": False},
    "schedule": {"kind": "cosine", "epochs": 600, "warmup_epochs": 5, "final_factor": 0.0, "scale": 1.0},
    "data": {"train_size": 176, "eval_resize": 232, "eval_size": 224, "flip": "random", "repeats": 4},
    "model.initialisation": "torchvision",
    "evaluation.target": 0.808,
    "methods": {
        "channels_last": {},
        "trivial_augment": {},
        "label_smoothing": {"smoothing": 0.1},
        "cutmix": {"alpha": 1.0, "mixup_alpha": 0.2},
        "random_erasing": {"probability": 0.1},
        "ema": {"half_life": pytest.approx(20_296, abs=1), "update_interval": 32},
    },
}
"""The command line of torchvision's reference script for ResNet50_Weights.IMAGENET1K_V2."""
A2: dict[str, Any] = {
    "global_batch": 2048,
    "precision": "bf16",
    "loss": "multi_label_binary_cross_entropy",
    "optimizer": LAMB,
    "schedule": {"kind": "cosine", "epochs": 300, "warmup_epochs": 5, "final_factor": 2e-4, "scale": 1.0},
    "data": {"train_size": 224, "eval_resize": 235, "eval_size": 224, "flip": "random", "repeats": 3},
    "model.initialisation": "torchvision_zero_residual",
    "evaluation.target": 0.798,
    "methods": {
        "stochastic_depth": {"kind": "sample", "rate": 0.05, "distribution": "linear_from_0", "divided": True},
        "channels_last": {},
        "randaugment": {"severity": 7, "depth": 2, "operations": "timm", "spread": 0.5, "probability": 0.5},
        "cutmix": {"alpha": 1.0, "mixup_alpha": 0.1},
    },
}
"""Table 2 of arXiv 2110.00476; a test crop of 0.95 is 224 of 235."""
A1 = A2 | {
    "loss": "mean_binary_cross_entropy",
    "optimizer": {**LAMB, "weight_decay": 0.01},
    "schedule": {**A2["schedule"], "epochs": 600},
    "evaluation.target": 0.804,
    "methods": {
        **A2["methods"],
        "label_smoothing": {"smoothing": 0.1},
        "cutmix": {"alpha": 1.0, "mixup_alpha": 0.2},
    },
}
A3 = A2 | {
    "optimizer": {**LAMB, "peak_lr": 8e-3},
    "schedule": {**A2["schedule"], "epochs": 100, "final_factor": 1.25e-4},
    "data": {**A2["data"], "train_size": 160, "repeats": 1},
    "evaluation.target": 0.781,
    "methods": {
        "channels_last": {},
        "randaugment": {**A2["methods"]["randaugment"], "severity": 6},
        "cutmix": A2["methods"]["cutmix"],
    },
}


@pytest.mark.parametrize(
    ("name", "source"), [("pytorch_2021", PYTORCH), ("rsb_a1", A1), ("rsb_a2", A2), ("rsb_a3", A3)]
)
def test_a_published_baseline_has_the_numbers_of_its_source(name, source):
    config = getattr(configs, f"imagenet_{name}")()
    assert config.name == f"imagenet_{name}" and config.total_epochs == source["schedule"]["epochs"]
    assert {method.name: vars(method) for method in config.methods} == source["methods"]
    wanted = flatten({key: part for key, part in source.items() if key != "methods"})
    found = {key: attrgetter(key)(config) for key in wanted}
    assert found == {key: pytest.approx(value) if type(value) is float else value for key, value in wanted.items()}
    assert (config.model.block, config.model.layers) == ("bottleneck", (3, 4, 6, 3))
    assert not config.problems()
