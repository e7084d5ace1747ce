"""Every hyper-parameter of each config: those of MosaicML Composer's unet of 2021, and our own."""

import pytest
import torch

from image_segmentation import brats, configs
from image_segmentation.run_info import build
from judging.ground.config_values import flatten
from timedrun.runner.config import dump

OF_EVERY_RUN = {"name", "notes", "seed", "micro_batch", "device", "tf32", "compile", "recompile", "warm_up_steps"}
OF_EVERY_RUN |= {"clear_cache", "budget_minutes", "submission", "eval_batch"}
COMPOSER = """benchmark=image_segmentation dataset=brats global_batch=64 precision=bf16 cudnn_benchmark=True
    optimizer.kind=radam optimizer.peak_lr=0.001 optimizer.momentum=0.9 optimizer.nesterov=False
    optimizer.weight_decay=0.0001 optimizer.decay_norms_and_biases=True optimizer.beta2=0.999 optimizer.epsilon=1e-08
    optimizer.other_lr=0.0 optimizer.other_momentum=0.0 optimizer.head_lr=0.0 optimizer.unit_filters=False
    optimizer.newton_schulz_iterations=5 optimizer.neuron_beta2=0.0 evaluation.target=0.7 evaluation.every=1
    evaluation.first=1 widths=[32,64,128,256,512,512] foreground=0.33 flips=True schedule.kind=constant
    schedule.epochs=200 schedule.warmup_epochs=0.0 schedule.final_factor=0.0 schedule.scale=1.0
    schedule.scale_warmup=False schedule.milestones=[] schedule.milestone_factor=0.1 schedule.power=2.0
    schedule.cooldown_epochs=0.0 max_epochs=0"""
TISSUES = """dataset=icbm152 global_batch=4 precision=fp32 cudnn_benchmark=False optimizer.kind=muon
    optimizer.peak_lr=0.1 optimizer.other_lr=0.2 optimizer.nesterov=True evaluation.target=0.935 evaluation.first=8
    widths=[16,32,64] foreground=0.0 flips=False schedule.kind=cosine schedule.epochs=16 schedule.warmup_epochs=0.5
    schedule.final_factor=0.1 schedule.scale_warmup=True max_epochs=30"""
BRATS_METHODS = """methods.blurpool.replace_convs=True methods.blurpool.replace_maxpools=True
    methods.blurpool.blur_first=True methods.blurpool.min_channels=16 methods.channels_last=on
    methods.progressive_resizing.start=0.5 methods.progressive_resizing.delay=0.5
    methods.progressive_resizing.finetune=0.2 methods.progressive_resizing.increment=32
    methods.progressive_resizing.interpolation=bilinear methods.progressive_resizing.where=batch
    methods.ema.half_life=100.0 methods.ema.update_interval=20"""
TISSUES_METHODS = """evaluation.first=5 schedule.epochs=10 methods.channels_last=on methods.ema.half_life=8.0
    methods.ema.update_interval=1"""


def hyper_parameters(*texts: str) -> dict[str, str]:
    """Return the settings that `texts` list, a later text's in place of an earlier one's."""
    return dict(word.split("=") for text in texts for word in text.split())


@pytest.mark.parametrize(
    ("config", "texts"),
    [
        ("brats_baseline", [COMPOSER]),
        ("brats_methods", [COMPOSER, BRATS_METHODS]),
        ("icbm152_baseline", [COMPOSER, TISSUES]),
        ("icbm152_methods", [COMPOSER, TISSUES, TISSUES_METHODS]),
    ],
)
def test_a_config_has_every_hyper_parameter_of_its_source(config, texts):
    values = flatten(dump(getattr(configs, config)()))
    own = {name: str(value) for name, value in values.items() if name.partition(".")[0] not in OF_EVERY_RUN}
    own = {name: value.replace(" ", "") for name, value in own.items() if name != "methods"}  # empty
    assert own == hyper_parameters(*texts)


def test_the_optimizer_of_brats_is_radam_with_adamws_decay():
    _, optimizer, _ = build(configs.brats_baseline(), brats.FACTS, 0, torch.device("meta"))
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.RAdam) and group["decoupled_weight_decay"]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.001, (0.9, 0.999), 1e-8, 1e-4)
