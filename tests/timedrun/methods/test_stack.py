"""A stack of methods: order, contexts, and targets that stay with their pixels; a method which did nothing is named."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun import methods
from timedrun.methods import EMA, REGISTRY, ColOut, CutOut, LabelSmoothing, ProgressiveResizing, stack
from timedrun.methods.method import Hooks, Method, NoEffect, Position
from timedrun.runner.benchmark import find
from timedrun.runner.config_choice import config_of
from timedrun.runner.distributed.process_group import ProcessGroup


class _Recording(Hooks):
    def __init__(self, letter: str, calls: list[str]) -> None:
        self.letter, self.calls = letter, calls

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        self.calls.append(f"batch {self.letter} {at.progress} {classes}")
        return inputs + 1, targets

    def after_step(self, model: nn.Module, step: int) -> None:
        self.calls.append(f"step {self.letter} {step}")

    @contextmanager
    def evaluation(self, model: nn.Module) -> Iterator[None]:
        self.calls.append(f"enter {self.letter}")
        try:
            yield
        finally:
            self.calls.append(f"leave {self.letter}")


class First(Method, name="first"):
    calls: list[str]

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        self.calls.append(f"model {self.name} {type(model).__name__}")
        return nn.Sequential(model), "wrapped"

    def hooks(self) -> Hooks:
        return _Recording(self.name, self.calls)


class Second(First, name="second"):
    """Another one of its stage."""


def test_methods_of_one_stage_act_in_the_order_given_and_contexts_close_in_reverse() -> None:
    calls: list[str] = []
    speed = stack(First(calls=calls), Second(calls=calls))
    model = speed.model(nn.Linear(2, 2))
    speed.before_step(model, 0, 0.25)
    inputs, _ = speed.batch(torch.zeros(1), torch.zeros(1), 10)
    speed.after_step(model)
    with pytest.raises(ZeroDivisionError), speed.evaluation(model):
        raise ZeroDivisionError
    assert inputs == 2
    assert calls == [
        *("model first Linear", "model second Sequential"),
        *("batch first 0.25 10", "batch second 0.25 10", "step first 1", "step second 1"),
        *("enter first", "enter second", "leave second", "leave first"),
    ]


def test_what_is_not_a_method_and_a_progress_that_is_not_a_share_of_the_run_are_refused() -> None:
    for wrong in (EMA, [EMA()], "ema"):
        with pytest.raises(TypeError, match=r"as in stack\(BlurPool"):
            stack(wrong)  # type: ignore[arg-type]
    for progress in (-0.1, 1.1, 7, float("nan")):
        with pytest.raises(ValueError, match="share of the whole run"):
            stack(ProgressiveResizing()).before_step(nn.Linear(2, 2), 0, progress)


@pytest.mark.parametrize(
    "method", [methods.SWA(end=0.9), methods.SelectiveBackprop(start=0.5, end=0.95), methods.LayerFreezing(start=0.5)]
)
def test_a_method_that_acts_after_the_last_step_is_refused_before_the_first(method: Method) -> None:
    speed = stack(methods.ChannelsLast(), method)
    speed.require_reach(method.acts_from, 10)
    words = f"{method.name} acts from 0.[59] of the run on, but the last step begins at 0.4"
    with pytest.raises(NoEffect, match=words):
        speed.require_reach(0.4, 10)


@pytest.mark.parametrize(
    ("name", "config"), [("language_model", "topics_baseline"), ("language_model.gpt", "shakespeare_baseline")]
)
def test_an_average_that_no_step_of_a_run_updates_is_refused_before_its_clock(name: str, config: str) -> None:
    benchmark, alone = find(name), ProcessGroup(0, 1, 0, torch.device("cpu"))
    settings = "--max-samples=950 --global-batch=100 --micro-batch=100"
    changed = config_of(benchmark, config, None, settings.split())
    benchmark.plan(replace(changed, methods=(EMA(half_life=4000, update_interval=10),)), alone, None)
    with pytest.raises(NoEffect, match="ema has its first effect after 11 optimizer steps, but the run has 10;"):
        benchmark.plan(replace(changed, methods=(EMA(half_life=4000, update_interval=11),)), alone, None)


def test_methods_that_clash_or_act_where_the_loop_has_no_place_are_refused() -> None:
    by_dict, tensors = ("batch_dict", "evaluation"), (LabelSmoothing, methods.MixUp, methods.CutMix, methods.TTA)
    stack(ProgressiveResizing(), EMA(), places=(*by_dict, "after_step"))
    for given, places, words in (
        ((EMA(), methods.LogBias(), EMA(half_life=3)), None, "more than once: ema"),
        ((EMA(), methods.SWA()), None, "swa and ema both average the weights"),
        ((methods.SWA(), EMA()), None, "swa and ema both average the weights"),
        ((methods.SAM(),), ("gradients", "batch"), "sam acts on `backward`, which this training loop does not call"),
        *(((method(),), (*by_dict, "batch"), "but this training loop passes a dict") for method in tensors),
        ((ProgressiveResizing(where="loader"),), by_dict, "acts on `input_size`"),
    ):
        with pytest.raises(ValueError, match=words):
            stack(*given, places=places)
    with pytest.raises(ValueError, match=r"\['ema'\].*\[\]"):  # the state of another set of methods
        stack().load_state_dict(stack(EMA()).state_dict())


def token_batch() -> dict[str, torch.Tensor]:
    tokens = torch.arange(32).view(2, 16)
    return {"input_ids": tokens, "attention_mask": (tokens % 16 < 12).long(), "labels": tokens + 100}


def test_every_field_of_a_token_batch_is_cut_alike_and_once() -> None:
    warm_up = methods.SequenceLengthWarmup(steps=10, duration=0.8, min_length=4, max_length=8, step_size=4)
    speed = stack(methods.ALiBi(train_sequence_length_scaling=0.5), warm_up)
    speed.enter(0, 0.0)
    cut = speed.batch_dict(token_batch())
    assert torch.equal(cut["input_ids"], torch.arange(4) + torch.tensor([[0], [8], [16], [24]]))
    assert torch.equal(cut["labels"], cut["input_ids"] + 100)
    assert torch.equal(cut["attention_mask"], (cut["input_ids"] % 16 < 12).long())
    assert speed.report[1] == "sequence_length_warmup: 1 batches cut to 4..4 tokens"
    with pytest.raises(ValueError, match="number of rows, but batch_dict keeps the fields .'labels'"):
        speed.batch_dict({**token_batch(), "labels": torch.tensor([0, 1])})  # one per sequence


@pytest.mark.parametrize("rows", [2, 16])  # as many as tokens: the first dimension is that of the rows
def test_fields_of_any_shape_and_kind_are_cut_along_the_tokens_and_the_others_kept(rows: int) -> None:
    speed = stack(methods.SequenceLengthWarmup(steps=10, duration=0.8, min_length=4, max_length=16, step_size=4))
    speed.enter(0, 0.0)
    tokens = torch.arange(rows * 16).view(rows, 16)
    kept = {"label": torch.arange(rows), "texts": ["a"] * rows, "step": 3, "none": None, "scalar": torch.tensor(1.0)}
    cut = speed.batch_dict(
        {
            "input_ids": tokens,
            "attention_mask": torch.ones(rows, 1, 16, 16),
            "position_ids": torch.arange(16)[None],
            "bias": torch.arange(3 * 16).view(3, 16),
            "words": [[str(word) for word in range(16)]] * rows,
            "offsets": tokens.numpy()[:, :, None],
            **kept,
        }
    )
    assert cut["input_ids"].tolist() == tokens[:, :4].tolist()
    assert cut["attention_mask"].shape == (rows, 1, 4, 4) and cut["attention_mask"].is_contiguous()
    assert cut["position_ids"].tolist() == [[0, 1, 2, 3]] and cut["bias"].shape == (3, 4)
    assert cut["words"] == [["0", "1", "2", "3"]] * rows and cut["offsets"].shape == (rows, 4, 1)
    assert all(cut[name] is kept[name] for name in kept if name != "texts")
    assert cut["texts"] == kept["texts"]
    masked = torch.where(tokens % 16 < 4, -100, tokens)  # a prompt
    with pytest.raises(ValueError, match="16 tokens to 4, and every label that is left is ignored"):
        speed.batch_dict({"input_ids": tokens, "labels": masked})
    with pytest.raises(TypeError, match="input_ids must be a tensor, not list"):
        speed.batch_dict({"input_ids": tokens.tolist()})


def test_changed_targets_and_unknown_fields_of_a_dict_are_refused() -> None:
    batch = {"pixel_values": torch.zeros(2, 3, 8, 8), "labels": torch.tensor([0, 1])}
    smoothing = stack(LabelSmoothing())
    smoothing.enter(0, 0.0)
    with pytest.raises(ValueError, match="change targets"):
        smoothing.batch_dict(batch)
    with pytest.raises(TypeError, match="batch_dict takes a dict"):
        smoothing.batch(batch, batch["labels"], 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs pixel_values or input_ids, got image"):
        stack(EMA()).batch_dict({"image": batch["labels"]})


def test_a_step_that_was_not_begun_is_refused() -> None:
    speed, model = stack(LabelSmoothing()), nn.Linear(2, 2)
    for call in (lambda: speed.batch(torch.zeros(1), torch.tensor([0]), 2), lambda: speed.after_step(model)):
        with pytest.raises(RuntimeError, match="`before_step` was not called"):
            call()
        speed.before_step(model, 0, 0.0)
        speed.after_step(model)


class _NewLayer(Method, name="new_layer"):
    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        return nn.Sequential(model, nn.Linear(2, 2)), "one layer"


@pytest.mark.parametrize(
    ("early", "change", "named"),
    [
        (False, lambda model: None, ""),
        (True, lambda model: None, r"created 2 parameters .*: 1\.weight, 1\.bias; build the optimizer after"),
        (True, lambda model: model[1].bias.requires_grad_(False), r"created 1 parameters .*: 1\.weight;"),
        (True, lambda model: model[1].requires_grad_(False), ""),  # frozen
        (True, lambda model: setattr(model[1], "forward", abs), ""),  # in no forward pass
        (True, lambda model: [nn.init.zeros_(each) for each in model[0].parameters()], r"1 parameters .*: 1\.bias;"),
    ],
)
@pytest.mark.parametrize("clear", ["optimizer", "model"])
def test_new_parameters_that_had_gradients_and_never_changed_are_named(early, change, named, clear):
    speed, network = stack(_NewLayer()), nn.Linear(2, 2)
    held = [*network.parameters()]
    model: Any = speed.model(network)
    change(model)
    optimizer = torch.optim.SGD(held if early else model.parameters(), lr=0.1)
    lacking = r"lacks \d parameters that the methods created, for example 1\."
    refused = early and any(parameter.requires_grad for parameter in model[1].parameters())
    with pytest.raises(ValueError, match=lacking) if refused else nullcontext():
        speed.require_in(optimizer)
    for step, rate in enumerate((0.0, 0.1, 0.0)):  # warmed up and decayed
        optimizer.param_groups[0]["lr"] = 0.0 if early else rate
        speed.before_step(model, step, step / 3)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        {"optimizer": optimizer, "model": model}[clear].zero_grad()
        speed.after_step(model)
    with pytest.raises(NoEffect, match=named) if named else nullcontext():
        speed.verify()


def test_random_streams_differ_by_seed_step_rank_and_micro_batch_and_nothing_else() -> None:
    at = Position(step=3, progress=0.5, seed=1, rank=0, micro_batch=0)
    first = at.random("mixup").rand(4).tolist()
    assert replace(at, progress=0.9).random("mixup").rand(4).tolist() == first
    others = [replace(at, **{name: 5}).random("mixup") for name in ("step", "seed", "rank", "micro_batch")]
    assert all(other.rand(4).tolist() != first for other in [*others, at.random("cutmix")])


PIXELS = torch.arange(2.0 * 24 * 40).view(2, 24, 40)
"""Images that name each of their pixels, and masks."""
IMAGES, SOFT = PIXELS[:, None], torch.rand(24, 40)  # as large as a mask, and none: of 24 samples
NAMES = ("randaugment", "augmix", "cutmix", "mixup", "label_smoothing")


def passed(targets: Any, *methods: Method) -> Any:
    speed = stack(*methods)
    speed.before_step(nn.Identity(), 0, 0.0)
    if type(targets) is dict:
        return speed.batch_dict({"pixel_values": IMAGES} | targets)
    return speed.batch(IMAGES, targets, 9)


CROP = ProgressiveResizing(interpolation="crop")


@pytest.mark.parametrize("methods", [[ColOut()], [ColOut(), ProgressiveResizing(start=0.55)], [CutOut()], [CROP]])
def test_masks_and_maps_have_the_values_of_their_own_pixels(methods):
    images, (mask, (maps, flag), labels) = passed((PIXELS.long(), [IMAGES, PIXELS > 900], torch.arange(2)), *methods)
    seen = images != 0  # not cut out
    assert torch.equal(mask[:, None][seen], images[seen].long()) and torch.equal(maps[seen], images[seen])
    assert torch.equal(flag, mask > 900) and labels.tolist() == [0, 1]
    fields = passed({"labels": PIXELS.long(), "masks": [PIXELS], "soft": SOFT, "texts": ["a"]}, *methods)
    assert torch.equal(fields["labels"], mask) and torch.equal(fields["masks"][0], maps[:, 0])
    assert torch.equal(fields["pixel_values"], images) and fields["soft"] is SOFT and fields["texts"] == ["a"]


def test_classes_are_never_mixed_where_images_are():
    images, (mask, depth) = passed((PIXELS.long(), PIXELS), ProgressiveResizing(increment=6, interpolation="bilinear"))
    torch.testing.assert_close(depth, images[:, 0])
    assert torch.equal(mask, F.interpolate(IMAGES, size=depth.shape[1:], mode="nearest-exact")[:, 0].long())


class _Crop(Hooks):
    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        return inputs[..., 1:], targets


class Crop(Method, hooks=_Crop): ...


@pytest.mark.parametrize("targets", [PIXELS.long(), (torch.arange(2), PIXELS), {"labels": PIXELS}, PIXELS[:, ::4, ::4]])
@pytest.mark.parametrize("method", [Crop(), *(REGISTRY[name]() for name in NAMES)])
def test_a_method_that_leaves_them_behind_is_refused(method, targets):
    with pytest.raises(
        ValueError, match=rf"{method.name} would move .*\[2, 1, 24, 40\] without|class indices|that change"
    ):
        passed(targets, method)


def test_an_own_method_can_move_them_and_where_images_shrink_maps_have_their_size(monkeypatch):
    monkeypatch.setattr(Crop, "moves_pixels", False)  # wrongly
    with pytest.raises(ValueError, match=r"Crop would move pixels of images \[2, 1, 24, 39\] without"):
        passed(PIXELS, Crop())
    monkeypatch.setattr(_Crop, "move", lambda self, maps, at: maps[..., 1:], raising=False)
    assert torch.equal(*passed(PIXELS[:, None], Crop()))
    for method in (ColOut(), Crop()):
        with pytest.raises(ValueError, match=r"without their targets \[2, \d, \d\]"):
            passed(PIXELS[:, ::4, ::4], method)


def test_samples_that_are_scored_at_a_smaller_size_have_masks_of_it():
    speed = stack(methods.SelectiveBackprop(start=0.0, interrupt=0, scale=0.5))
    speed.enter(0, 0.1)

    def losses(images: Tensor, targets: Any) -> Tensor:
        assert images.shape == (2, 1, 12, 20)
        return (images[:, 0] - targets[0]).mean((1, 2))

    images, (mask, labels) = speed.select(IMAGES, (PIXELS.long(), torch.arange(2)), losses)
    assert torch.equal(mask, images[:, 0].long()) and labels.shape == (1,) and images.shape == (1, 1, 24, 40)
