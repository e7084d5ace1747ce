"""Progressive resizing and sequence length warm-up: the published schedules, and what becomes of inputs."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from timedrun.methods import ColOut, NoEffect, ProgressiveResizing, stack
from timedrun.methods.method import Position
from timedrun.methods.progressive_resizing import resize
from timedrun.methods.sequence_length_warmup import SequenceLengthWarmup, cut

MLPERF = ProgressiveResizing(start=0.5, delay=0.4, finetune=0.2, increment=4)

# (width, epochs) -> (size, epochs at it), mean pixel cost relative to 224 x 224: executed with Composer's formula.
PUBLISHED = {
    (176, 18): ("88x8 96 112 124 136 148 160 172 176x3", 0.318),
    (176, 26): ("88x11 92 100 112 119 128 136 144 152 160 168 176x5", 0.320),
    (176, 28): ("88x12 96 104 112 116 124 132 140 148 156 164 172 176x5", 0.320),
    (176, 32): ("88x14 96 104 112 116 124 132 136 144 152 160 164 172 176x6", 0.322),
    (176, 36): ("88x15 92 96 104 112 116 124 128 136 140 148 152 160 164 172 176x7", 0.324),
}


def runs(sizes: list[int]) -> str:
    counted = [(size, len(list(group))) for size, group in itertools.groupby(sizes)]
    return " ".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in counted)


@pytest.mark.parametrize("width, epochs", PUBLISHED)
def test_published_schedules(width, epochs):
    expected, cost = PUBLISHED[width, epochs]
    sizes = MLPERF.sizes(width, [epoch / epochs for epoch in range(epochs)])  # progress by epochs, as in 2022
    assert runs(sizes) == expected
    assert np.mean(np.square(sizes)) / 224**2 == pytest.approx(cost, abs=6e-4)


def test_sizes_have_ties_to_even_and_a_nominal_120_of_176_is_119_and_images_keep_their_shape():
    assert MLPERF.sizes(176, [0.399, 0.8]) == [88, 176]
    assert MLPERF.sizes(20, [0.0]) == [8]  # 2.5 increments
    assert MLPERF.sizes(28, [0.0]) == [16]  # 3.5 increments
    for width in (176, 224):
        odd = {size for size in MLPERF.sizes(width, np.linspace(0, 1, 4001)) if size % 4}
        assert odd == ({119} if width == 176 else set())


@pytest.mark.parametrize("width", [176, 224, 32, 8])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "crop"])
def test_batches_have_the_size_that_the_schedule_names(width, interpolation):
    method = ProgressiveResizing(delay=0.4, interpolation=interpolation)
    hooks = method.hooks()
    images, labels = torch.randn(1, 2, width, width), torch.zeros(1, dtype=torch.int64)
    for progress in np.linspace(0, 1, 41):
        small, same = hooks.batch(images, labels, Position(0, float(progress)), 10)
        assert [small.shape[3]] == method.sizes(width, [float(progress)])
        assert same is labels


def test_nearest_steps_by_one_over_scale_crop_keeps_the_middle_and_bilinear_is_the_antialiased_filter_of_pillow():
    image = torch.randn(2, 3, 32, 20).to(memory_format=torch.channels_last)
    middle = resize(image, 7 / 8, "crop")
    assert torch.equal(middle, image[:, :, 2:30, 1:19]) and middle.is_contiguous(memory_format=torch.channels_last)
    image = torch.randn(1, 1, 176, 176)
    picked = (np.arange(119, dtype=np.float32) * np.float32(176 / 120)).astype(int)
    assert torch.equal(resize(image, 120 / 176, "nearest"), image[:, :, picked][:, :, :, picked])
    pillow = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    expected = np.asarray(pillow.fromarray(image).resize((10, 10), pillow.Resampling.BILINEAR))
    actual = resize(torch.from_numpy(image)[None, None], 10 / 16, "bilinear")
    np.testing.assert_allclose(actual[0, 0].numpy(), expected, atol=1e-5)


def test_images_that_are_not_square_keep_their_shape_and_full_size_is_handed_on():
    images, hooks = torch.randn(1, 3, 88, 176), MLPERF.hooks()
    assert hooks.batch(images, torch.zeros(1), Position(0, 0.9), 10)[0] is images
    assert hooks.effect() is None
    small, _ = hooks.batch(images, torch.zeros(1), Position(0, 0.0), 10)
    assert small.shape == (1, 3, 44, 88)
    assert hooks.effect() == "1 batches resized to 88..88 px"


def test_at_the_loader_images_are_asked_for_at_the_published_sizes_and_left_as_they_are():
    with pytest.raises(ValueError, match="must be nearest or bilinear with where=loader, .* not 'crop'"):
        replace(MLPERF, where="loader", interpolation="crop")
    speed = stack(replace(MLPERF, where="loader"))
    assert runs([speed.input_size(176, epoch / 28) for epoch in range(28)]) == PUBLISHED[176, 28][0]
    assert stack(MLPERF).input_size(176, 0.0) == 176
    for progress, size in ((0.0, 88), (0.9, 176)):
        images = torch.randn(2, 3, size, size)
        speed.enter(0, progress)
        assert speed.batch(images, torch.zeros(2), 10)[0] is images
    assert speed.report == ["progressive_resizing: 1 batches loaded at 88..88 px"]
    for asked, loaded in ((False, 88), (True, 176)):  # a loop that loads whole images whatever is asked for
        speed = stack(replace(MLPERF, where="loader"))
        speed.input_size(176, 0.0) if asked else None
        speed.enter(0, 0.0)
        speed.batch(torch.randn(2, 3, loaded, loaded), torch.zeros(2), 10)
        with pytest.raises(NoEffect, match="progressive_resizing"):
            speed.verify()


class Skip(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        assert input.shape[2:] == (32, 32) or not {"image_size", "img_size"}.intersection(vars(self))
        return input + F.interpolate(F.max_pool2d(input, 2), scale_factor=2) * torch.rand(())


EIGHTH, TIMM, BY_LOADER = ColOut(p_row=0.125, p_col=0.125), {"img_size": (32, 32)}, replace(MLPERF, where="loader")
TRIED = [
    *(({}, [MLPERF], 0), ({}, [ProgressiveResizing(start=0.55, increment=3)], 21), ({}, [ColOut()], 27)),
    *(({}, [EIGHTH], 0), ({}, [MLPERF, EIGHTH], 17), (TIMM, [BY_LOADER], 64), ({"image_size": 32}, [EIGHTH], 64)),
]


@pytest.mark.parametrize(("declared", "methods", "size"), TRIED)
def test_image_sizes_of_a_run_that_the_model_does_not_take_are_refused(declared, methods, size):
    speed, images, layer = stack(*methods), torch.ones(2, 3, 32, 32), Skip(3, 3, 1)
    vars(layer).update(declared)
    random = torch.get_rng_state()
    with pytest.raises(ValueError, match=rf"not take \[3, {size}, {size}\] \(") if size else nullcontext():
        model = nn.Sequential(speed.model(layer))  # refuses what declares its one size
        speed.before_step(model, 0, 0.0)
        speed.batch(images, images, 2)
    assert torch.equal(torch.get_rng_state(), random)


GPT_125M = SequenceLengthWarmup(steps=14_000, pacing="composer_2022")


def lengths(method: SequenceLengthWarmup, first: int, last: int) -> list[int]:
    return [method.length(step / method.steps) for step in range(first, last)]


def test_gpt_125m_by_the_defaults_adds_8_tokens_every_33_steps_up_to_step_4224():
    run = lengths(GPT_125M, 0, 14_000)
    assert run[:67] == [8] * 66 + [16]
    assert run[98] == 16 and run[99] == 24
    assert run.index(1024) == 4_224 and set(run[4_224:]) == {1024}
    assert 1 - sum(run) / (14_000 * 1024) == pytest.approx(0.15, abs=0.005)


@given(
    steps=st.integers(20, 2000),
    hundredths=st.integers(10, 100),
    low=st.integers(1, 60),
    more=st.integers(16, 500),
    step_size=st.sampled_from([1, 4, 8, 16]),
)
@settings(max_examples=30)
def test_linear_lengths_are_the_papers_formula_in_exact_fractions(steps, hundredths, low, more, step_size):
    duration = hundredths / 100
    method = SequenceLengthWarmup(
        steps=steps, duration=duration, min_length=low, max_length=low + more, step_size=step_size
    )
    total = steps * hundredths // 100
    for step in range(steps):
        exact = low + more * min(Fraction(step, total), 1)
        expected = low + more if step >= total else max(low, exact // step_size * step_size)
        assert method.length(step / steps) == expected


@pytest.mark.parametrize("truncate", [True, False])
def test_targets_stay_the_successors_of_inputs(truncate):
    few = [[0, 1, 2], [10, 11, 12]] if truncate else torch.arange(18).view(6, 3).tolist()
    assert cut(torch.arange(20).view(2, 10), 3, truncate=truncate).tolist() == few
    method = SequenceLengthWarmup(steps=100, max_length=32, truncate=truncate, pacing="composer_2022")
    hooks, tokens = method.hooks(), torch.arange(2 * 32).view(2, 32)
    seen = []
    for step in range(100):
        inputs, targets = hooks.batch(tokens, tokens + 1, Position(0, step / 100), 99)
        assert torch.equal(targets, inputs + 1)
        seen.append(inputs.shape[1])
    assert seen == lengths(method, 0, 100)
    # 30 steps, 3 increments of 8: one every 10 steps, the first of which ends at min_length
    assert hooks.effect() == "40 batches cut to 8..24 tokens"
