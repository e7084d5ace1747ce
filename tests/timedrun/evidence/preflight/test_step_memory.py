"""The estimate of a step's memory is what torch's profiler sees its allocator give."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from image_classification.configs import cifar10_methods, digits_methods
from image_classification.warm_up import build_step as build_images
from language_model.configs import CPU_SPEED_UPS, topics_baseline
from language_model.encoder import Bert
from language_model.gpt.configs import shakespeare_modern
from language_model.gpt.warm_up import build_step as build_gpt
from language_model.warm_up import build_step as build_bert
from timedrun.evidence.preflight.step_memory import GIB, BuildStep, estimate, largest, room
from timedrun.methods.training.precision import AUTOCAST
from timedrun.runner.config import RunConfig

BERT = replace(
    topics_baseline(),
    implementation="timedrun",
    speed=replace(CPU_SPEED_UPS, attention="sdpa_padded"),
    architecture=replace(topics_baseline().architecture, layers=2),
    global_batch=32,
)
IMAGES = replace(cifar10_methods(), precision="fp32")


def allocated(step: Callable[[], Any], path: Path) -> int:
    """Return the bytes that are allocated at most at a time during `step`, in addition to those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    profile.export_chrome_trace(str(path))
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one["name"] == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda one: float(one["ts"])):
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    return peak


def measured(build_step: BuildStep, config: RunConfig, micro: int, path: Path) -> int:
    """Return the bytes of gradients and activations of a real step of two micro-batches on the CPU."""
    model, loss_of, _ = build_step(config)
    dtype = AUTOCAST[config.precision]

    def step() -> None:
        for _ in range(2):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = loss_of(micro)
            loss.backward()
            del loss

    step()  # allocates what stays, such as constants of kernels
    model.zero_grad(set_to_none=True)
    return allocated(step, path)


@pytest.mark.parametrize(
    ("build_step", "config", "micro", "tolerance"),
    [
        (build_bert, BERT, 4, 0.001),
        (build_bert, replace(BERT, precision="bf16", speed=replace(CPU_SPEED_UPS, attention="eager")), 4, 0.001),
        (build_gpt, shakespeare_modern(), 4, 0.001),
        (build_images, replace(IMAGES, precision="bf16"), 16, 0.1),  # oneDNN's workspaces are in no tensor
    ],
    ids=["bert", "eager bert in bf16", "gpt", "images in bf16"],
)
def test_gradients_and_activations_are_those_of_a_real_step(build_step, config, micro, tolerance, tmp_path):
    memory = estimate(build_step, config, 1, micro, cuda=False)
    model, *_ = build_step(config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert memory.gradients == 4 * sum(parameter.numel() for parameter in trained)
    real = measured(build_step, config, micro, tmp_path / "trace.json")
    assert memory.gradients + memory.activations == pytest.approx(real, rel=tolerance)


@pytest.mark.parametrize(
    ("build_step", "config"), [(build_bert, BERT), (build_gpt, shakespeare_modern()), (build_images, IMAGES)]
)
def test_an_evaluation_takes_what_a_real_one_does(build_step, config, tmp_path):
    model, loss_of, _ = build_step(config)
    model.eval()
    with torch.inference_mode():
        real = allocated(lambda: loss_of(64), tmp_path / "trace.json")
    memory = estimate(build_step, config, 1, 64, cuda=False, training=False)
    assert memory.activations == pytest.approx(real, rel=0.1) and memory.gradients == 0


def test_state_that_outlives_a_step_is_counted_by_its_kind():
    model, *_ = build_images(digits_methods())
    trained = 4 * sum(parameter.numel() for parameter in model.parameters())
    whole = trained + sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    config = replace(digits_methods(), optimizer=replace(digits_methods().optimizer, kind="adamw"), warm_up_steps=3)
    memory = estimate(build_images, config, 1, 16)
    assert (memory.model, memory.copy, memory.averages, memory.optimizer) == (whole, whole, whole, 2 * trained)
    assert estimate(build_images, replace(config, methods=(), warm_up_steps=0), 1, 16).copy == 0


def test_the_largest_micro_batch_that_fits_is_named_and_the_next_divisor_does_not_fit():
    config = replace(BERT, global_batch=12)
    sizes = {size: estimate(build_bert, config, 2, size).total for size in (1, 3)}
    fitting = largest(build_bert, config, 2, sizes[3])
    assert fitting.micro == 3 and fitting.total == sizes[3] > sizes[1]
    assert largest(build_bert, config, 2, sizes[1] - 1) is None
    assert room(80 * GIB) == 74 * GIB


def test_a_gpus_autocast_computes_softmax_and_norms_in_fp32_and_attention_without_padding():
    config = replace(BERT, precision="bf16", speed=replace(CPU_SPEED_UPS, attention="auto"))
    model, *_ = build_bert(config)
    assert isinstance(model, Bert) and model.attention == "varlen"
    padded = replace(config, speed=replace(config.speed, attention="sdpa_padded"))
    assert estimate(build_bert, config, 1, 16).activations < estimate(build_bert, padded, 1, 16).activations
    eager = replace(config, speed=replace(CPU_SPEED_UPS, attention="eager", unpadding=False))
    kept = 4 * config.architecture.layers * config.architecture.heads * 16 * config.data.longest**2  # fp32 weights
    found = [estimate(build_bert, eager, 1, 16, cuda=cuda).activations for cuda in (True, False)]
    assert found[0] - found[1] > 0.9 * kept
