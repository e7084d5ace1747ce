"""A stack of methods: order, contexts, and that a method which did nothing is named."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from timedrun.methods import (
    EMA,
    REGISTRY,
    BlurPool,
    ChannelsLast,
    Hooks,
    LabelSmoothing,
    LogBias,
    Method,
    NoEffect,
    ProgressiveResizing,
    SequenceLengthWarmup,
    stack,
)


class _Recording(Hooks):
    def __init__(self, letter: str, calls: list[str]) -> None:
        self.letter, self.calls = letter, calls

    def batch(self, inputs: Tensor, targets: Tensor, progress: float, classes: int) -> tuple[Tensor, Tensor]:
        self.calls.append(f"batch {self.letter} {progress} {classes}")
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


@dataclass(frozen=True, kw_only=True)
class First(Method):
    name: ClassVar[str] = "first"
    calls: list[str]

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        self.calls.append("model first")
        return nn.Sequential(model), "wrapped"

    def hooks(self) -> Hooks:
        return _Recording("first", self.calls)


@dataclass(frozen=True, kw_only=True)
class Second(First):
    name: ClassVar[str] = "second"

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        self.calls.append(f"model second {type(model).__name__}")
        return model, ""

    def hooks(self) -> Hooks:
        return _Recording("second", self.calls)


def test_methods_act_in_the_order_given_and_contexts_close_in_reverse() -> None:
    calls: list[str] = []
    speed = stack(First(calls=calls), Second(calls=calls))
    model = speed.model(nn.Linear(2, 2))
    inputs, _ = speed.batch(torch.zeros(1), torch.zeros(1), 0.25, 10)
    speed.after_step(model, 1)
    with pytest.raises(ZeroDivisionError), speed.evaluation(model):
        raise ZeroDivisionError
    assert inputs == 2
    assert calls == [
        "model first",
        "model second Sequential",
        "batch first 0.25 10",
        "batch second 0.25 10",
        "step first 1",
        "step second 1",
        "enter first",
        "enter second",
        "leave second",
        "leave first",
    ]


@pytest.mark.parametrize("progress", [-0.1, 1.1, 7, float("nan")])
def test_a_progress_that_is_not_a_share_of_the_run_is_refused(progress: float) -> None:
    with pytest.raises(ValueError, match="share of the whole run"):
        stack(ProgressiveResizing()).batch(torch.zeros(1, 3, 8, 8), torch.tensor([0]), progress, 3)


@pytest.mark.parametrize("wrong", [EMA, [EMA()], "ema"])
def test_what_is_not_a_method_is_refused_with_the_right_form(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"as in stack\(BlurPool"):
        stack(wrong)


def test_every_idle_method_is_named_and_no_other() -> None:
    speed = stack(ChannelsLast(), EMA(), LabelSmoothing(), ProgressiveResizing())
    model = speed.model(nn.Conv2d(3, 3, 1))
    speed.batch(torch.zeros(1, 3, 8, 8), torch.tensor([0]), 0.9, 3)  # too late to resize
    speed.after_step(model, 1)  # too early to average
    with pytest.raises(NoEffect, match=r": ema, progressive_resizing;"):
        speed.verify()
    assert "ema: nothing yet" in speed.report
    speed.batch(torch.zeros(1, 3, 8, 8), torch.tensor([0]), 0.0, 3)
    speed.after_step(model, 20)
    speed.verify()
    assert speed.report == [
        "channels_last: 1 convolution weights",
        "ema: 1 updates of the moving average",
        "label_smoothing: 2 batches of targets smoothed by 0.1",
        "progressive_resizing: 1 batches resized to 4..4 px",
    ]


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_that_did_nothing_keeps_a_run_from_counting(name: str) -> None:
    """On a model that has none of what it changes, and with no step taken."""
    with pytest.raises(NoEffect, match=name):
        speed = stack(REGISTRY[name](**({"steps": 1000} if name == "sequence_length_warmup" else {})))
        speed.model(nn.Sequential(nn.Flatten()))
        speed.verify()


def test_surgery_that_was_never_applied_counts_as_nothing() -> None:
    with pytest.raises(NoEffect, match="blurpool"):
        stack(BlurPool()).verify()


def test_an_empty_stack_changes_nothing_and_is_content() -> None:
    speed, model = stack(), nn.Linear(2, 2)
    assert speed.model(model) is model
    with speed.evaluation(model):
        pass
    speed.verify()
    assert speed.report == [] and speed.state_dict() == {}


def test_two_methods_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="more than once: ema"):
        stack(EMA(), LogBias(), EMA(half_life=3))


def test_state_of_another_set_of_methods_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['ema'\].*\['label_smoothing'\]"):
        stack(LabelSmoothing()).load_state_dict(stack(EMA()).state_dict())


class _Halving(Hooks):
    def batch(self, inputs: Tensor, targets: Tensor, progress: float, classes: int) -> tuple[Tensor, Tensor]:
        return inputs.reshape(-1, inputs.shape[1] // 2), targets.reshape(-1, targets.shape[1] // 2)


@dataclass(frozen=True, kw_only=True)
class _Halved(Method):
    """Twice as many sequences of half the length, as by ALiBi."""

    name: ClassVar[str] = "halved"

    def hooks(self) -> Hooks:
        return _Halving()


def token_batch() -> dict[str, torch.Tensor]:
    tokens = torch.arange(32).view(2, 16)
    return {"input_ids": tokens, "attention_mask": (tokens % 16 < 12).long(), "labels": tokens + 100}


def test_every_field_of_a_token_batch_is_cut_alike_and_once() -> None:
    warm_up = SequenceLengthWarmup(steps=10, duration=0.8, min_length=4, max_length=8, step_size=4)
    speed = stack(_Halved(), warm_up)
    cut = speed.batch_dict(token_batch(), 0.0)
    assert torch.equal(
        cut["input_ids"], torch.tensor([[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19], [24, 25, 26, 27]])
    )
    assert torch.equal(cut["labels"], cut["input_ids"] + 100)
    assert torch.equal(cut["attention_mask"], (cut["input_ids"] % 16 < 12).long())
    assert speed.report[1] == "sequence_length_warmup: 1 batches cut to 4..4 tokens"


def test_a_label_per_sequence_cannot_follow_sequences_that_are_split() -> None:
    batch = {**token_batch(), "labels": torch.tensor([0, 1])}
    with pytest.raises(ValueError, match="number of rows, but batch_dict keeps the fields .'labels'"):
        stack(_Halved()).batch_dict(batch, 0.0)


def test_images_in_a_dict_are_resized_and_changed_targets_refused() -> None:
    batch = {"pixel_values": torch.zeros(2, 3, 8, 8), "labels": torch.tensor([0, 1])}
    resized = stack(ProgressiveResizing(start=0.5, delay=0.5)).batch_dict(batch, 0.0)
    assert resized["pixel_values"].shape == (2, 3, 4, 4) and resized["labels"] is batch["labels"]
    with pytest.raises(ValueError, match="change targets"):
        stack(LabelSmoothing()).batch_dict(batch, 0.0)
    with pytest.raises(TypeError, match="batch_dict takes a dict"):
        stack(LabelSmoothing()).batch(batch, batch["labels"], 0.0, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs pixel_values or input_ids, got image"):
        stack(EMA()).batch_dict({"image": batch["labels"]}, 0.0)
