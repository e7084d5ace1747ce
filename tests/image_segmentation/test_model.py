"""The U-Net, its loss and its quality are those of their formulas, and each config has its source's numbers."""

import pytest
import torch
import torch.nn.functional as F

from image_segmentation import configs
from image_segmentation.model import UNet, dice_cross_entropy, mean_dice, overlaps
from judging.ground.config_values import differing
from timedrun.methods import BlurPool
from timedrun.methods.training.schedule import Schedule
from timedrun.runner.config import EvaluationConfig, OptimizerConfig, dump


def logits_by_formula(model, images):
    """The logits of `model` in evaluation mode, from its weights by their names."""
    w = model.state_dict()

    def normed(x, convolution, norm, stride=1):
        x = F.conv2d(x, w[f"{convolution}.weight"], stride=stride, padding=1)
        return F.batch_norm(x, *(w[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")))

    def block(x, at, stride=1):
        out = F.leaky_relu(normed(x, f"{at}.conv1", f"{at}.norm1", stride), 0.01)
        out = normed(out, f"{at}.conv2", f"{at}.norm2")
        if f"{at}.shortcut.0.weight" in w:
            out = out + normed(x, f"{at}.shortcut.0", f"{at}.shortcut.1", stride)
        return F.leaky_relu(out, 0.01)

    levels = [block(images, "first")]
    for number in range(len(model.down)):
        levels.append(block(levels[-1], f"down.{number}", 2))
    x = levels.pop()
    for number in range(len(model.up)):
        larger, same = F.conv_transpose2d(x, w[f"up.{number}.weight"], w[f"up.{number}.bias"], 2), levels.pop()
        x = block(torch.cat([larger[:, :, : same.shape[2], : same.shape[3]], same], 1), f"merge.{number}")
    return F.conv2d(x, w["head.weight"], w["head.bias"])


def loss_by_formula(logits, masks):
    shares = logits.softmax(1)
    pairs = [(shares[:, number], masks == number) for number in range(logits.shape[1])]
    dice = [1 - (2 * share[truth].sum() + 1e-5) / (share.sum() + truth.sum() + 1e-5) for share, truth in pairs]
    return torch.stack(dice[1:]).mean() - torch.cat([share[truth] for share, truth in pairs]).log().mean()


@pytest.mark.parametrize("size", [(8, 12), (7, 10)])
def test_the_network_and_its_loss_are_their_formulas(size):
    torch.manual_seed(1)
    model = UNet(2, 3, (4, 6, 5)).double().eval()
    for name, value in model.state_dict().items():
        if ".norm" in name or "shortcut.1" in name:
            value.copy_(torch.rand(value.shape) + 0.5)
    images, masks = torch.randn(2, 2, *size, dtype=torch.float64), torch.randint(3, (2, *size))
    with torch.no_grad():
        logits = model(images)
    wanted = logits_by_formula(model, images)
    torch.testing.assert_close(logits, wanted, rtol=1e-10, atol=1e-10)
    assert float(dice_cross_entropy(logits, masks)) == pytest.approx(float(loss_by_formula(wanted, masks)), rel=1e-5)


def test_the_network_of_the_text_has_its_size_and_blurpool_finds_its_five_strided_levels_twice():
    model = UNet(4, 4, (32, 64, 128, 256, 512, 512))
    assert sum(parameter.numel() for parameter in model.parameters()) == 24_543_268
    assert BlurPool().model(model)[1] == "10 convolutions, 0 max-pools"  # and their shortcuts'


def test_quality_is_the_mean_over_cases_and_classes_and_a_class_in_neither_mask_counts_as_one():
    masks = torch.tensor([[[1, 1, 2]], [[0, 1, 2]], [[0, 0, 0]]])
    predicted = torch.tensor([[[1, 2, 2]], [[1, 1, 0]], [[0, 0, 1]]])
    counts = overlaps(predicted, masks, 3)
    assert counts.tolist() == [[[1, 3], [1, 3]], [[1, 3], [0, 1]], [[0, 1], [0, 0]]]
    cases = torch.stack([counts[:2].sum(0), counts[2]])  # the first two slices are one scan
    assert mean_dice(cases) == pytest.approx((2 * 2 / 6 + 2 * 1 / 4 + 0 + 1) / 4)


BARE = configs.SegmentationConfig(
    benchmark="image_segmentation",
    name="",
    dataset="",
    global_batch=0,
    widths=(),
    schedule=Schedule(kind="linear", epochs=1),
    optimizer=OptimizerConfig(kind="sgd", peak_lr=0.0),
    evaluation=EvaluationConfig(target=0.0),
)
COMPOSER = """dataset=brats global_batch=64 precision=bf16 cudnn_benchmark=True optimizer.kind=radam
    optimizer.peak_lr=0.001 optimizer.weight_decay=0.0001 evaluation.target=0.7 widths=[32,64,128,256,512,512]
    foreground=0.33 flips=True schedule.kind=constant schedule.epochs=200"""
COMPOSER_METHODS = """ methods.blurpool.replace_convs=True methods.blurpool.replace_maxpools=True
    methods.blurpool.blur_first=True methods.blurpool.min_channels=16 methods.channels_last=on
    methods.progressive_resizing.start=0.5 methods.progressive_resizing.delay=0.5
    methods.progressive_resizing.finetune=0.2 methods.progressive_resizing.increment=32
    methods.progressive_resizing.interpolation=bilinear methods.progressive_resizing.where=batch
    methods.ema.half_life=100.0 methods.ema.update_interval=20"""
TISSUES = """dataset=icbm152 global_batch=4 optimizer.kind=muon optimizer.peak_lr=0.1 optimizer.other_lr=0.2
    optimizer.nesterov=True optimizer.weight_decay=0.0001 evaluation.target=0.935 widths=[16,32,64] max_epochs=30
    schedule.kind=cosine schedule.warmup_epochs=0.5 schedule.final_factor=0.1 schedule.scale_warmup=True"""


@pytest.mark.parametrize(
    ("config", "listed"),
    [
        ("brats_baseline", COMPOSER),
        ("brats_methods", COMPOSER + COMPOSER_METHODS),
        ("icbm152_baseline", TISSUES + " schedule.epochs=16 evaluation.first=8"),
        (
            "icbm152_methods",
            TISSUES + " schedule.epochs=10 evaluation.first=5 methods.channels_last=on"
            " methods.ema.half_life=8.0 methods.ema.update_interval=1",
        ),
    ],
)
def test_a_config_has_the_numbers_of_its_source_and_defaults_in_all_else(config, listed):
    differences = differing(dump(BARE), dump(getattr(configs, config)()))
    changed = {name: str(new).replace(" ", "") for name, _, new in differences}
    given = {name: value for name, value in changed.items() if name not in ("name", "notes", "methods")}
    assert given == dict(word.split("=") for word in listed.split())
