"""Steps of several configs in turns: ratios with an interval, rates, and the operations that are counted."""

import math
import multiprocessing
import random
from dataclasses import astuple, replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from image_classification.configs import ImageRunConfig
from timedrun.evidence.analysis import step_times as step_times_module
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_benchmark import StepRow, rate_ratio
from timedrun.evidence.analysis.step_flops import flop_counter, peak_flops
from timedrun.evidence.analysis.step_times import StepTimes, speed_up, step_times
from timedrun.runner.benchmark import find
from timedrun.runner.config import RunConfig


def test_the_speed_up_is_the_geometric_mean_of_pairs_with_students_interval():
    base = StepTimes((0.0, 1.0), ((2.0, 4.0), (8.0,)))
    other = StepTimes((0.0, 1.0), ((1.0, 1.0), (1.0,)))
    gain = speed_up(base, other)
    # Logarithms to base 2: 1, 2, 3; mean 2, standard deviation 1; Student's t with 2 degrees of freedom: 4.302653.
    margin = 4.302653 / math.sqrt(3)
    assert astuple(gain) == pytest.approx((4, 2 ** (2 - margin), 2 ** (2 + margin)), rel=1e-6)
    assert gain.verdict_against(1, "faster", "slower") == "no difference shown"
    assert speed_up(base, replace(base, chunks=((2.0, 4.0), (8.0,)))).value == 1
    with pytest.raises(ValueError, match="at least two chunks"):
        speed_up(replace(base, chunks=((1.0,),)), replace(base, chunks=((1.0,),)))
    # of each position the median of its chunks, integrated
    assert StepTimes((0.0, 1.0), ((1.0, 1.0, 9.0), (3.0, 3.0, 1.5))).seconds == 2.0


@pytest.mark.processes
def test_configs_are_measured_together_and_one_that_fails_or_is_killed_while_it_waits_leaves_the_others(monkeypatch):
    class Killing(random.Random):
        def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
            for child in multiprocessing.active_children():
                if child.name == "steps of killed":
                    child.kill()
                    child.join()
            return list(population)

    monkeypatch.setattr(random, "Random", Killing)
    smoke = find("image_classification").config("smoke", "synthetic")
    assert isinstance(smoke, ImageRunConfig)
    broken = replace(smoke, data=replace(smoke.data, source="cifar10"))  # without a data folder
    plan = StepPlan(positions=(0.0, 1.0), chunks=2, chunk=2, skip=1, evaluate=False)
    configs = {"broken": broken, "killed": smoke, "smoke": smoke}
    found, failed = step_times("image_classification", configs, plan, threads=1)
    assert failed.keys() == {"broken", "killed"} and "data-folder" in failed["broken"]
    assert failed["killed"] == "its process ended with exit code -9"
    (times,) = found.values()
    assert [len(chunks) for chunks in times.chunks] == [2, 2] and times.seconds > 0


SECONDS = ((1.0, 2.0, 3.0, 4.0, 5.0), (3.0, 4.0, 5.0, 6.0, 7.0))


def row(config: RunConfig, operations: float, peak: float | None, tokens: float | None = 100.0) -> StepRow:
    times = StepTimes((0.0, 1.0), ((3.0,), (5.0,)), seconds_of_steps=SECONDS, operations=(operations, operations))
    return StepRow("label", config, times, None, tokens, peak)


def test_rates_and_shares_of_the_peak_are_those_of_the_median_step_and_of_the_batch():
    config = find("language_model").config("baseline")
    measured = row(config, 32e12, 40e12)
    assert measured.quartiles == (3.0, 4.0, 5.0)
    assert measured.samples_per_second == config.global_batch / 4 == 4
    assert measured.tokens_per_second == 400
    values = measured.as_values(row(config, 64e12, 40e12))
    assert values["mfu"] == pytest.approx(32 / 4 / 40)
    assert values["mfu_with_the_operations_of_the_first"] == pytest.approx(64 / 4 / 40)
    unknown = row(config, 32e12, None, None)
    assert unknown.tokens_per_second is None and unknown.as_values(unknown)["mfu"] is None
    base = StepTimes((0.5,), ((1.0, 2.0, 3.0),))
    doubled = StepTimes((0.5,), ((2.0, 4.0, 6.0),))
    twice = replace(config, global_batch=2 * config.global_batch)
    assert astuple(rate_ratio(config, base, twice, doubled)) == pytest.approx((1, 1, 1))
    assert rate_ratio(config, base, config, doubled).value == pytest.approx(0.5)


def test_attention_on_a_cpu_is_counted_with_the_scores_that_its_backward_pass_recomputes():
    count, heads, length, width = 2, 3, 8, 16
    query, key, value = (torch.randn(count, heads, length, width, requires_grad=True) for _ in range(3))
    mask = torch.ones(count, 1, 1, length, dtype=torch.bool)
    with flop_counter() as counted:
        functional.scaled_dot_product_attention(query, key, value, mask).sum().backward()
    product = 2 * count * heads * length * length * width
    assert counted.get_total_flops() == (2 + 5) * product


def test_attention_under_a_block_mask_is_counted_as_attention_to_all_places(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)  # no CPU's gradients
    query, key, value = (torch.randn(2, 3, 128, 16, requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    with torch.compiler.set_stance("force_eager"), flop_counter() as counted:
        mixed = torch.compile(flex_attention)(query, key, value, block_mask=mask)
        mixed.sum().backward()  # as a run on CUDA is counted
    assert counted.get_total_flops() == (2 + 5) * 2 * 2 * 3 * 128 * 128 * 16
    assert all(one.grad is not None and one.grad.norm() > 0 for one in (query, key, value))


def test_attention_over_rows_is_counted_by_the_lengths_of_the_sequences():
    formula = flop_counter().flop_registry[torch.ops.torch_attn._varlen_attn]
    rows = torch.zeros(12, 4, 16, dtype=torch.bfloat16)
    cuts = torch.tensor([0, 9, 12], dtype=torch.int32)
    assert formula(rows, rows, rows, cuts, cuts, 512, 512) == 2 * 2 * 4 * 16 * (9**2 + 3**2)


def test_a_step_of_the_small_bert_has_the_operations_of_its_matrices_and_padding_is_no_token_but_takes_some():
    benchmark = find("language_model")
    configs = [benchmark.config(name) for name in ("baseline", "methods")]
    plan = StepPlan(positions=(0.5,), skip=1)
    (padded,), (unpadded,) = (step_times_module._operations(benchmark, config, plan, None, 2) for config in configs)
    tokens, hidden, layers, vocabulary = 16 * 128, 64, 2, configs[0].architecture.vocabulary
    forward = 2 * tokens * (layers * 12 * hidden**2 + hidden**2 + hidden * vocabulary)
    forward += 2 * layers * 2 * tokens * 128 * hidden  # scores, weighted sums
    assert padded == 3 * forward and unpadded < 0.6 * padded
    lengths = [benchmark.hook("datasets", "tokens_per_sample")(config, None) for config in configs]
    assert lengths[0] == lengths[1] and 5 < lengths[0] < 128


def test_peaks_are_of_the_precision_and_of_the_variant():
    assert peak_flops("NVIDIA H200", "bf16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops("NVIDIA H100 80GB HBM3", "tf32") == 495e12
    assert peak_flops("Tesla V100-SXM2-16GB", "bf16") is None
    assert peak_flops("an unknown accelerator", "bf16") is None
