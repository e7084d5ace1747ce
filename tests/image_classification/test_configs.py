"""Published baselines as configs: every hyper-parameter as its source has it."""

import pytest

from image_classification import configs
from judging.ground.config_values import flatten
from timedrun.runner.config import plain


def listed(text: str) -> dict[str, str]:
    return dict(item.split() for item in text.replace("\n", ",").split(",") if item.strip())


PYTORCH = listed("""
    global_batch 1024, precision fp32, loss cross_entropy, model.block bottleneck, model.initialisation torchvision
    data.train_size 176, data.eval_resize 232, data.eval_size 224, data.flip random, data.repeats 4
    schedule.kind cosine, schedule.epochs 600, schedule.warmup_epochs 5, schedule.final_factor 0, schedule.scale 1
    optimizer.kind sgd, optimizer.peak_lr 0.5, optimizer.momentum 0.9, optimizer.nesterov False
    optimizer.weight_decay 2e-5, optimizer.decay_norms_and_biases False
    methods.channels_last on, methods.trivial_augment on, methods.label_smoothing.smoothing 0.1
    methods.cutmix.alpha 1, methods.cutmix.mixup_alpha 0.2, methods.random_erasing.probability 0.1
    methods.ema.half_life 20296, methods.ema.update_interval 32""")
"""The command line of torchvision's reference script for ResNet50_Weights.IMAGENET1K_V2."""
A2 = listed("""
    global_batch 2048, precision bf16, loss multi_label_binary_cross_entropy, model.block bottleneck
    data.train_size 224, data.eval_resize 235, data.eval_size 224, data.flip random, data.repeats 3
    schedule.kind cosine, schedule.epochs 300, schedule.warmup_epochs 5, schedule.final_factor 2e-4, schedule.scale 1
    optimizer.kind lamb, optimizer.peak_lr 5e-3, optimizer.momentum 0.9, optimizer.beta2 0.999, optimizer.epsilon 1e-6
    optimizer.weight_decay 0.02, model.initialisation torchvision_zero_residual, methods.channels_last on
    methods.stochastic_depth.kind sample, methods.stochastic_depth.rate 0.05, methods.stochastic_depth.divided True
    methods.stochastic_depth.distribution linear_from_0, methods.cutmix.alpha 1, methods.cutmix.mixup_alpha 0.1
    methods.randaugment.severity 7, methods.randaugment.depth 2, methods.randaugment.operations timm
    methods.randaugment.spread 0.5, methods.randaugment.probability 0.5""")
"""Table 2 of arXiv 2110.00476; a test crop of 0.95 is 224 of 235."""
A1 = A2 | listed("schedule.epochs 600, optimizer.weight_decay 0.01, loss mean_binary_cross_entropy")
A1 |= listed("methods.cutmix.mixup_alpha 0.2, methods.label_smoothing.smoothing 0.1")
A3 = {name: value for name, value in A2.items() if "depth." not in name} | listed("""
    schedule.epochs 100, schedule.final_factor 1.25e-4, optimizer.peak_lr 8e-3, data.train_size 160, data.repeats 1
    methods.randaugment.severity 6""")


@pytest.mark.parametrize(
    ("name", "source"), [("pytorch_2021", PYTORCH), ("rsb_a1", A1), ("rsb_a2", A2), ("rsb_a3", A3)]
)
def test_a_published_baseline_has_the_numbers_of_its_source(name, source):
    config = getattr(configs, f"imagenet_{name}")()
    values = {"data.repeats": config.data.repeats} | flatten(plain(config))  # no dump has a later field at its default
    for setting, wanted in source.items():
        value = values[setting]
        assert str(value) == wanted or value == pytest.approx(float(wanted), rel=1e-5), setting
    assert {setting for setting in values if setting.startswith("methods.")} <= source.keys()
    assert config.model.layers == (3, 4, 6, 3) and not config.problems()
