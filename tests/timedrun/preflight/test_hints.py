"""Hints about a stack of methods, from their cards."""

from timedrun.methods import EMA, SAM, CutMix, CutOut, LabelSmoothing, Method, MixUp, SelectiveBackprop
from timedrun.preflight.hints import method_hints


def test_two_methods_on_one_part_of_a_step_are_pointed_out_with_what_comes_of_it() -> None:
    (targets,) = method_hints([LabelSmoothing(), MixUp(), EMA()], 90, "imagenet")
    assert targets.startswith("label_smoothing and mixup both act on the targets: smoothing is done first")
    (passes,) = method_hints([SelectiveBackprop(), SAM()], None, "corpus")
    assert "both act on the forward and backward passes" in passes
    (pixels,) = method_hints([CutMix(), CutOut()], 90, "imagenet")
    assert "cutmix and cutout both act on the pixels: the zeroed square" in pixels


def test_a_regularizer_in_a_short_run_is_pointed_out() -> None:
    (short,) = method_hints([MixUp(), EMA()], 66, "imagenet")
    assert short.startswith("mixup is a regularizer") and "this run has 66 of imagenet" in short
    assert method_hints([MixUp()], 67, "imagenet") == method_hints([MixUp()], None, "imagenet") == []


def test_a_method_without_a_card_has_no_hint() -> None:
    assert method_hints([Method(), Method()], 1, "imagenet") == []
