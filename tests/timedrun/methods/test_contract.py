"""What holds for every method: its fields, models, inputs, state, partners, and that nothing goes without effect."""

import copy
import io
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from image_classification import SPEC
from image_classification.configs import synthetic_smoke
from image_classification.train import train
from judging.ground.errors import TimedrunError
from mlevents import keys, record
from tests.timedrun.methods.small_run import STEPS, TOKENS, SmallRun, TokenRun, example, small_model
from timedrun import methods
from timedrun.methods import REGISTRY, BlurPool, Factorize, Float8, LogBias, ProgressiveResizing, stack
from timedrun.methods.method import Method, NoEffect
from timedrun.runner.config import load, plain
from timedrun.runner.config_choice import with_change

NAN, INF = float("nan"), float("inf")
WRONG: dict[str, list[Any]] = {
    "alibi.max_sequence_length augmix.depth randaugment.depth weight_standardization.ignore_last tta.shift": [-1],
    "alibi.train_sequence_length_scaling": [0.0, 0.3, 1.5, -0.25, NAN],
    "augmix.alpha cutmix.alpha mixup.alpha": [0, -1.0, INF, NAN],
    "augmix.operations randaugment.operations gradient_clipping.by sequence_length_warmup.pacing": ["most"],
    "augmix.severity randaugment.severity": [0.0, 10.1, NAN],
    "augmix.width cutout.num_holes ema.update_interval factorize.min_channels factorize.min_features": [0],
    "colout.p_row colout.p_col": [-0.1, 1.0, NAN],
    "cutout.length layer_freezing.level selective_backprop.scale sequence_length_warmup.duration": [0.0, 1.1, NAN],
    "ema.half_life gradient_clipping.threshold sam.rho swa.interval whitening.eps": [0.0, -1.0, NAN],
    "factorize.latent_channels factorize.latent_features squeeze_excite.latent_channels": [0, 1.5, 2.5],
    "ghost_batch_norm.ghost_batch selective_backprop.interrupt": [1],
    "gyro_dropout.p stochastic_depth.rate selective_backprop.keep info_batch.easy info_batch.rate": [0.0, 1.0],
    "gyro_dropout.tau": [3, 0],
    "label_smoothing.smoothing progressive_resizing.finetune whitening.bias_end": [-0.1, 1.1, NAN],
    "layer_freezing.start": [-0.1, 1.0],
    "progressive_resizing.delay selective_backprop.start info_batch.start": [-0.1, 0.9],
    "progressive_resizing.increment sam.interval sequence_length_warmup.step_size squeeze_excite.min_channels": [0],
    "progressive_resizing.interpolation progressive_resizing.where stochastic_depth.kind": ["loadr"],
    "progressive_resizing.start": [0.0, 1.1],
    "randaugment.depth": [0],
    "randaugment.probability random_erasing.probability": [0.0, 1.1, NAN],
    "randaugment.spread": [-0.1, 11, 0.5],
    "cutmix.mixup_alpha": [-0.1, INF, NAN],
    "sam.epsilon": [-1.0],
    "selective_backprop.end swa.end info_batch.end": [1.5],
    "sequence_length_warmup.min_length": [0, 1024],
    "sequence_length_warmup.steps stochastic_depth.distribution": ["cubic"],
    "swa.end": [1.0],
    "swa.start": [-0.1, 0.98],
}
REQUIRED = {"sequence_length_warmup": {"steps": 14_000}}
ACTED = (
    "blurpool",
    "factorize",
    "ghost_batch_norm",
    "gyro_dropout",
    *(f"low_precision_{of}_norm" for of in ("layer", "group")),
)
"""Methods whose layers note that they acted."""
RENAMED = ("factorize", "squeeze_excite", "weight_standardization")
SURGERY = [name for name, kind in REGISTRY.items() if kind.model is not Method.model and not kind.profiling]


@pytest.mark.parametrize("names", WRONG)
def test_a_value_out_of_its_range_is_refused_by_name(names):
    for name, field in (place.split(".") for place in names.split()):
        for value in WRONG[names]:
            words = rf"^{name}\.{field} must be .+, not {re.escape(repr(value))}$"
            with pytest.raises(ValueError, match=words):
                REGISTRY[name](**REQUIRED.get(name, {}) | {field: value})


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (methods.SequenceLengthWarmup, {"steps": 14_000, "step_size": 2000}, "too few for an increment"),
        (methods.SequenceLengthWarmup, {"steps": 3}, "too few for an increment, or for each of them"),
        (Float8, {"layers": "("}, "not a regular expression"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(kind, values, words):
    with pytest.raises(ValueError, match=words):
        kind(**values)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_config_holds_it_with_its_fields_and_gives_it_back(name):
    config = replace(synthetic_smoke(), methods=(REGISTRY[name](**REQUIRED.get(name, {})),))
    assert load(type(config), plain(config)) == config


class Own(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class OwnNorm(nn.BatchNorm2d): ...


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_pre_hook(lambda layer, inputs: None)
    return layer


CONV, LINEAR = (f"1 torch.nn.modules.{kind}" for kind in ("conv.Conv2d", "linear.Linear"))
OF_16, SHARED = partial(nn.Conv2d, 16, 16, 3, stride=2), nn.Linear(300, 300)
STRIDED = lambda: [nn.Conv2d(8, 16, 3, 2), OF_16(), nn.MaxPool2d(2)]  # noqa: E731
REPLACED: list[tuple[Method, list[nn.Module], str]] = [
    (BlurPool(), STRIDED(), "1 convolution, 1 max-pool"),
    (BlurPool(min_channels=8), STRIDED(), "2 convolutions, 1 max-pool"),
    (BlurPool(replace_convs=False), STRIDED(), "0 convolutions, 1 max-pool"),
    (BlurPool(replace_maxpools=False), STRIDED(), "1 convolution, 0 max-pools"),
    (BlurPool(), [conv := OF_16(), nn.MaxPool2d(2), conv], "1 convolution, 1 max-pool"),
    (BlurPool(), [OF_16(), hooked(nn.MaxPool2d(2))], "1 convolution, 0 max-pools, 1 strided layers left as they were"),
    (
        BlurPool(),
        [
            *(Own(16, 16, 3, 2), OF_16(padding=1, padding_mode="reflect"), nn.MaxPool2d(2, return_indices=True)),
            *(parametrizations.weight_norm(OF_16()), OF_16()),
        ],
        "1 convolution, 0 max-pools, 4 strided layers left as they were",
    ),
    (
        Factorize(),
        [SHARED, SHARED, nn.Conv2d(256, 256, 1, groups=2), nn.Linear(300, 10)],
        f"1 layers; left as they were: {CONV}, {LINEAR}",
    ),
    (Factorize(min_features=8), [nn.Linear(8, 8), hooked(nn.Linear(8, 8))], f"1 layers; left as they were: {LINEAR}"),
    (methods.ChannelsLast(), [nn.Conv2d(3, 3, 1), nn.Linear(2, 2), nn.Conv2d(3, 3, 1)], "2 convolution weights"),
    (
        Float8(layers="[01]"),
        [nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 16)],
        "1 linear layers; left as they were: 2 torch.nn.modules.linear.Linear",
    ),
    (
        methods.GhostBatchNorm(),
        [nn.BatchNorm2d(3), OwnNorm(3)],
        f"1 batch norms over parts of 32 samples; left as they were: 1 {__name__}.OwnNorm",
    ),
    (
        methods.WeightStandardization(),
        [nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1, groups=4)],
        "1 convolutions; 1 of one weight a filter left as they were",
    ),
    (
        methods.WeightStandardization(),
        [nn.Conv2d(3, 3, 3), nn.utils.weight_norm(nn.Conv2d(3, 3, 3))],
        f"1 convolutions; left as they were: {CONV}",
    ),
    (LogBias(), [nn.Linear(2, 3), nn.Linear(3, 2), nn.Dropout()], "bias of 1 set to -ln(2)"),
    (LogBias(), [nn.Linear(2, 3), parametrizations.weight_norm(nn.Linear(3, 3))], "bias of 1 set to -ln(3)"),
    (methods.NoOpModel(), [nn.Linear(4, 5), nn.Linear(5, 7)], "one scalar in place of 67 parameters"),
]


@pytest.mark.parametrize(("method", "layers", "words"), REPLACED)
def test_layers_are_replaced_in_every_place_and_others_are_left_and_counted(method, layers, words):
    before = nn.Sequential(*layers).eval()
    parts, parameters = [*before], {*before.parameters()}
    model, said = method.model(before)
    assert said == words and not any(layer.training for layer in (model, *model.children()))
    if method.name not in ("no_op_model", "weight_standardization", "factorize"):
        assert {*model.parameters()} == parameters  # also where an optimizer holds them
    if method.name != "no_op_model":  # a layer in two places stays one
        assert [a is b for a in parts for b in parts] == [a is b for a in model for b in model]
    if method.name in ("blurpool", "factorize"):
        numbers = map(int, re.findall(r"(\d+) (?:convolution|max-pool|layers;)", words))
        assert len({*parts}.difference(model)) == sum(numbers)


REFUSED: list[tuple[Method, list[nn.Module], str]] = [
    (BlurPool(), [nn.Conv2d(16, 16, 3), nn.Linear(4, 2)], "blurpool found no strided convolution"),
    (BlurPool(), [BlurPool().model(nn.Sequential(nn.Conv2d(16, 8, 3, 2), nn.MaxPool2d(2)))[0]], "blurpool found"),
    (Factorize(), [nn.Linear(10, 10)], "256 channels or 256 features"),
    (Float8(layers="nowhere"), [nn.Linear(16, 16)], "no linear layer named 'nowhere'"),
    (methods.GhostBatchNorm(), [nn.BatchNorm2d(3, momentum=None)], "no batch norm with a momentum"),
    (methods.GyroDropout(), [nn.Dropout(0.0)], "found no nn.Dropout of a rate above 0 to replace; 1 of rate 0 stay"),
    (methods.LayerFreezing(), [nn.Linear(2, 2)], "layer_freezing"),
    (LogBias(), [nn.Linear(2, 3), nn.Linear(3, 2, bias=False)], "log_bias"),
    (LogBias(), [nn.Linear(2, 3), nn.LayerNorm(3)], "log_bias"),
    (methods.LowPrecisionGroupNorm(), [nn.Linear(2, 2)], "found no"),
    (methods.LowPrecisionLayerNorm(), [nn.Linear(2, 2)], "found no"),
    (methods.SqueezeExcite(), [nn.Conv2d(3, 64, 3)], "128 or more"),
    (methods.TTA(), [nn.Linear(3, 2)], "no 2-d convolution"),
    (methods.WeightStandardization(ignore_last=3), [nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)], "before the last 3"),
    (methods.Whitening(), [nn.Linear(2, 2)], "found none"),
    (methods.Whitening(), [nn.Conv2d(3, 8, 3)], "set 54 output"),
    (methods.Whitening(), [nn.Conv2d(3, 24, 2, dilation=2)], "no dilation"),
]


@pytest.mark.parametrize(("method", "layers", "words"), REFUSED)
def test_a_model_without_what_a_method_changes_is_refused_unchanged(method, layers, words):
    model = nn.Sequential(*layers)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NoEffect, match=words):
        method.model(model)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_that_did_nothing_keeps_a_run_from_counting(name):
    """On a model that has none of what it changes, and with no step taken; and it refuses layers without weights."""
    method = REGISTRY[name](**REQUIRED.get(name, {}))
    with pytest.raises(NoEffect, match=name):
        speed = stack(method)
        speed.model(nn.Sequential(nn.Flatten()))
        speed.verify()
    with pytest.raises(TimedrunError, match=name):  # without a model, too
        stack(method).verify()
    if name in ACTED:  # layers that no forward pass reaches
        speed = stack(example(name))
        model = speed.model(small_model())
        speed.before_step(model, 0, 0.0)
        speed.after_step(model)
        with pytest.raises(NoEffect, match=f"changed nothing in this run: {name}"):
            speed.verify()
    lazy = nn.Sequential(nn.LazyConv2d(24, 2), nn.LazyBatchNorm2d(affine=False), nn.Flatten(), nn.LazyLinear(4))
    with pytest.raises(ValueError, match=r"have no 0.weight, .*1.running_mean.* run a batch through them"):
        stack(method).model(lazy)


@pytest.mark.parametrize("name", [name for name in SURGERY if name not in TOKENS])
def test_surgery_takes_models_in_bf16_on_the_meta_device_and_copies_of_what_it_made(name):
    model = stack(example(name)).model(small_model().to("meta"))
    assert model(torch.empty(4, 3, 32, 32, device="meta")).shape == (4, 4)
    speed = stack(example(name))
    model = speed.model(small_model().to(torch.bfloat16)).train()
    assert (model.state_dict().keys() == small_model().state_dict().keys()) is (name not in RENAMED)
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    speed.before_step(model, 0, 0.0)
    with torch.no_grad():
        images = torch.randn(4, 3, 32, 32, dtype=torch.bfloat16)
        output = copy.deepcopy(model).eval()(images)
        assert output.dtype == torch.bfloat16 and output.isfinite().all()
        assert torch.equal(model.eval()(images), output)


WARM_UP = methods.SequenceLengthWarmup(steps=14_000, pacing="composer_2022")


@pytest.mark.parametrize(
    ("method", "inputs", "words"),
    [
        (methods.ALiBi(), torch.zeros(2, 6), "alibi"),
        (methods.ColOut(p_row=0.9), torch.zeros(1, 1, 5, 5), "colout leaves 0 x 4 px of images of 5 x 5"),
        (methods.CutMix(), torch.zeros(2, 7), r"cutmix needs images .*got \[2, 7\]"),
        (methods.MixUp(), torch.zeros(2, 3, 4, 4).byte(), r"mixup needs inputs of floating point, got torch\.uint8"),
        (ProgressiveResizing(), torch.zeros(2, 5), r"got \[2, 5\]"),
        (ProgressiveResizing(), torch.zeros(1, 1, 3, 3), "rounds to 0 px"),
        (WARM_UP, torch.zeros(2, 3, 8, 8), r"got \[2, 3, 8, 8\]"),
        # A setting that changes no batch.
        (methods.ColOut(p_row=0.0, p_col=0.0), torch.zeros(1, 1, 5, 5), ""),
        (methods.LabelSmoothing(smoothing=0.0), torch.zeros(1, 2), ""),
        (WARM_UP, torch.zeros(2, 8), ""),  # no longer than its minimum
    ],
)
def test_inputs_of_another_kind_are_refused_and_unchanged_batches_are_no_effect(method, inputs, words):
    speed, targets = stack(method), torch.zeros(len(inputs), dtype=torch.int64)
    targets = targets if words or inputs.dim() == 4 else inputs
    speed.enter(0, 0.0)
    with pytest.raises(ValueError, match=words) if words else nullcontext():
        passed = speed.batch(inputs, targets, 30)
        assert all(a is b for a, b in zip(passed, (inputs, targets), strict=True))
    assert speed.report == [f"{method.name}: nothing yet"]
    with pytest.raises(NoEffect, match=method.name):
        speed.verify()


def run_of(*names: str) -> SmallRun:
    return (TokenRun if {*names} & {*TOKENS} else SmallRun)(*map(example, names))


@pytest.fixture
def any_size(monkeypatch) -> None:
    """Models that need not be tried, which takes longer than a step."""
    monkeypatch.setattr(methods.Stack, "_require_sizes", lambda *_: None)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("name", REGISTRY)
def test_resuming_at_any_step_equals_no_interruption(name):
    whole, saved = run_of(name), [io.BytesIO() for _ in range(STEPS + 1)]
    for step in range(STEPS):
        torch.save(whole.state(), saved[step])
        whole.steps(step, step + 1)
    torch.save(whole.state(), saved[STEPS])
    expected = whole.evaluated()
    if name not in TOKENS and not REGISTRY[name].profiling:
        whole.speed.verify()
    for interrupted, state in enumerate(saved):
        state.seek(0)
        resumed = run_of(name)
        resumed.restore(torch.load(state, weights_only=True))
        resumed.steps(interrupted, STEPS)
        for one, other in zip(expected, resumed.evaluated(), strict=True):
            assert torch.equal(one, other), f"resumed after step {interrupted}"
        assert resumed.speed.report == whole.speed.report
    with pytest.raises(ValueError):
        example(name).hooks().load_state_dict({"unknown": 1})


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("first", REGISTRY)
def test_every_pair_trains_or_is_refused_by_name(first):
    for second in [*REGISTRY][[*REGISTRY].index(first) + 1 :]:
        if (first in TOKENS) != (second in TOKENS) and "ema" not in (first, second):  # images with tokens
            continue
        # A small run has a group norm, whose backward pass on a CPU ends the process in this pair.
        refused = second in REGISTRY[first].clashes or first in REGISTRY[second].clashes
        if refused or {first, second} == {"channels_last", "layer_freezing"}:
            with pytest.raises(ValueError, match=f"{first}.*{second}|{second}.*{first}"):
                run_of(first, second)
        else:
            run_of(first, second).steps(2, 3)  # past the delays of the examples


def one_step(model: nn.Module, *given: Method) -> Tensor:
    """Train a copy of `model` for a step at 0.9 of a run and return its outputs; raise what the methods refuse."""
    torch.manual_seed(0)
    speed = stack(*given)
    model = speed.model(copy.deepcopy(model)).train()
    speed.before_step(model, 0, 0.9)
    inputs, targets = speed.batch(torch.randn(4, 3, 64, 64), torch.arange(4), 4)
    with torch.autocast("cpu", torch.bfloat16, enabled=any("low_precision" in method.name for method in given)):
        outputs: Tensor = model(inputs)
    F.cross_entropy(outputs.float(), targets).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    speed.after_step(model)
    speed.verify()
    return outputs.detach()


@pytest.mark.parametrize("name", ["test_coatnet", "test_efficientnet_gn", "test_resnet"])
def test_on_models_of_timm_it_acts_or_refuses_by_name(torchvision, name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, **({"img_size": 64} if name == "test_coatnet" else {}))
    for parameter in model.parameters():
        if not parameter.any():  # residual branches that begin at 0 would hide what happens in them
            nn.init.constant_(parameter, 0.5)
    expected, acting = one_step(model), set()
    for method in SURGERY:
        try:
            changed = not torch.equal(one_step(model, example(method)), expected)
        except (NoEffect, ValueError) as refusal:
            assert method in str(refusal)
        else:
            assert changed or method in ("channels_last", "layer_freezing", "whitening")
            acting.add(method)
    assert {"channels_last", "layer_freezing"} <= acting


def test_a_run_for_profiling_that_would_reach_its_target_is_aborted(make_run, tmp_path):
    config = with_change(synthetic_smoke(), ("+", "no_op_model", {}))  # a target below chance
    words = "no_op_model is for profiling: no result counts"
    with pytest.raises(TimedrunError, match=words), make_run(config, SPEC) as run:
        train(config, run)
    assert record.read(tmp_path / "result_0.txt").status == keys.ABORTED
    assert run.position.step == 8
