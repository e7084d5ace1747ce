"""Sequence length warm-up: the paper's line and Composer's staircase step by step, and what becomes of the tokens."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from timedrun.methods.method import Position
from timedrun.methods.sequence_length_warmup import SequenceLengthWarmup, cut

GPT_125M = SequenceLengthWarmup(steps=14_000, pacing="composer_2022")


def lengths(method: SequenceLengthWarmup, first: int, last: int) -> list[int]:
    return [method.length(step / method.steps) for step in range(first, last)]


def test_gpt_125m_by_the_defaults_adds_8_tokens_every_33_steps_up_to_step_4224() -> None:
    run = lengths(GPT_125M, 0, 14_000)
    assert run[:67] == [8] * 66 + [16]
    assert run[98] == 16 and run[99] == 24
    assert run.index(1024) == 4_224
    assert set(run[4_224:]) == {1024}
    assert 1 - sum(run) / (14_000 * 1024) == pytest.approx(0.15, abs=0.005)


def test_the_papers_line_ends_at_its_duration_and_not_later() -> None:
    run = lengths(replace(GPT_125M, pacing="linear"), 0, 14_000)
    assert run[:35] == [8] * 34 + [16]  # 8 + 1,016 x 33 / 4,200 = 15.98
    assert run.index(1024) == 4_200
    assert (run[2_099], run[2_100], run[4_199]) == (512, 516 // 8 * 8, 1_016)


@given(
    steps=st.integers(20, 2000),
    hundredths=st.integers(10, 100),
    low=st.integers(1, 60),
    more=st.integers(16, 500),
    step_size=st.sampled_from([1, 4, 8, 16]),
)
@settings(max_examples=30)
def test_linear_lengths_are_the_papers_formula_in_exact_fractions(
    steps: int, hundredths: int, low: int, more: int, step_size: int
) -> None:
    duration = hundredths / 100
    method = SequenceLengthWarmup(
        steps=steps, duration=duration, min_length=low, max_length=low + more, step_size=step_size
    )
    total = steps * hundredths // 100
    for step in range(steps):
        exact = low + more * min(Fraction(step, total), 1)
        expected = low + more if step >= total else max(low, exact // step_size * step_size)
        assert method.length(step / steps) == expected


@given(
    steps=st.integers(50, 3000),
    duration=st.floats(0.1, 1),
    low=st.integers(1, 40),
    increments=st.integers(1, 5),
    step_size=st.integers(1, 16),
    extra=st.integers(0, 15),
)
@settings(max_examples=30)
def test_composers_lengths_are_those_of_a_loop_that_adds_an_increment_every_n_steps(
    steps: int, duration: float, low: int, increments: int, step_size: int, extra: int
) -> None:
    high = low + increments * step_size + extra % step_size
    method = SequenceLengthWarmup(
        steps=steps, duration=duration, min_length=low, max_length=high, step_size=step_size, pacing="composer_2022"
    )
    every = int(steps * duration + 1e-9) // increments
    grown, left = 0, every
    for step in range(steps):
        if left == 0:
            grown, left = grown + step_size, every
        left -= 1
        assert method.length(step / steps) == (low if grown < low else high if grown > high else grown)


def test_truncation_keeps_the_beginning_of_each_sequence_and_cutting_every_token_that_fills_a_row() -> None:
    tokens = torch.arange(20).view(2, 10)
    assert torch.equal(cut(tokens, 3, truncate=True), torch.tensor([[0, 1, 2], [10, 11, 12]]))
    assert torch.equal(cut(tokens, 3, truncate=False), torch.arange(18).view(6, 3))


def test_sequences_that_are_short_enough_are_handed_on_untouched() -> None:
    tokens = torch.arange(20).view(2, 10)
    assert cut(tokens, 10, truncate=True) is tokens
    hooks = GPT_125M.hooks()
    assert hooks.batch(tokens, tokens, Position(0, 0.3), 30)[0] is tokens
    assert hooks.effect() is None


@pytest.mark.parametrize("truncate", [True, False])
def test_targets_stay_the_successors_of_inputs(truncate: bool) -> None:
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
