"""The full size of Llama 3.1 8B: its parameters, and the memory and time that preflight computes for it."""

from dataclasses import replace

import torch

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import preflight
from language_model.gpt.llama31_8b_configs import LLAMA31_8B, c4_full, topics_closed
from language_model.gpt.model import Decoder
from language_model.gpt.warm_up import build_step
from mlevents.rounds import RULESETS
from timedrun.benchmark import find
from timedrun.commands.preflight import length_notes, memory_finding
from timedrun.distributed.process_group import ProcessGroup
from timedrun.preflight.step_memory import StepMemory, estimate

PARAMETERS = 8_030_261_248
BENCHMARK = find("llama31_8b")


def test_the_full_size_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Decoder(LLAMA31_8B)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS


def test_a_run_of_the_full_size_is_refused_as_long_as_stores_have_16_bits_for_a_token() -> None:
    assert any("no run can start" in problem for problem in preflight(c4_full(), None, 8))
    assert not any("no run can start" in problem for problem in preflight(topics_closed(), None, 8))


def memory(config: GptRunConfig, ranks: int) -> StepMemory:
    return estimate(build_step, config, ranks, config.micro_batch)


SHALLOW = replace(c4_full(), model=replace(LLAMA31_8B, layers=2))


def test_sharding_divides_what_a_rank_stores_by_the_ranks() -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Decoder(SHALLOW.model).parameters())
    whole, parts = memory(replace(SHALLOW, sharding="none"), 8), memory(SHALLOW, 8)
    angles = whole.model - whole.gradients  # of rotary positions: a buffer, on every rank
    assert whole.gradients == 4 * count and angles == 4 * 2 * 8192 * 64
    assert (parts.model - angles, parts.gradients, parts.optimizer) == (count // 2, count // 2, count)
    layer = (PARAMETERS - count) // 30
    assert parts.gathered == 2 * (count - 2 * layer + 3 * layer) and whole.gathered == 0  # bytes of bf16
    assert memory(SHALLOW, 1).gathered == 0


def test_activations_are_those_that_a_count_by_hand_finds() -> None:
    one = replace(SHALLOW, model=replace(LLAMA31_8B, layers=1))
    block = memory(SHALLOW, 8).activations - memory(one, 8).activations
    tokens, hidden, keys, inner = 8192, 4096, 1024, 14_336
    # 2 bytes: two norms' inputs and results; queries, keys and values after and the attention's result; of the MLP both
    # products, SiLU and the product of the two. The rest: the attention's float32 sums and the rotation's copies.
    least = 2 * tokens * (4 * hidden + (2 * hidden + 2 * keys) + 4 * inner)
    assert least < block < 1.5 * least


def test_preflight_says_the_memory_of_a_rank_and_the_time_at_a_throughput() -> None:
    config = c4_full()
    finding = memory_finding(BENCHMARK, SHALLOW, 8, 8 * 2**30)
    assert (
        finding.level == "warning" and "layers gathered" in finding.message and "no micro-batch fits" in finding.message
    )
    plan = BENCHMARK.plan(config, ProcessGroup(0, 8, 0, torch.device("cpu")), None)
    reference, longest = length_notes(BENCHMARK, config, plan, RULESETS["6.1.0"], throughput=4.0)
    mean = (16 * 159_744 + 2 * 172_032) / 18  # of 20 runs without the shortest and the longest
    assert f"{mean:,.0f} samples, {mean * 8192:,.0f} tokens; {mean / 4 / 3600:,.2f} h" in reference
    assert "19,200,000 samples, 157,286,400,000 tokens; 1,333.33 h at 4 per second (32,768 tokens" in longest
