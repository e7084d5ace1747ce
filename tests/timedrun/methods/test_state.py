"""A run interrupted at any step and resumed from its saved state ends bit for bit like one that was not."""

import io

import pytest
import torch

from tests.timedrun.methods.small_run import STEPS, TOKENS, SmallRun, TokenRun, example
from timedrun.methods import REGISTRY


def run_of(name: str) -> SmallRun:
    return (TokenRun if name in TOKENS else SmallRun)(example(name))


@pytest.mark.parametrize("name", REGISTRY)
def test_resuming_at_any_step_equals_no_interruption(name: str) -> None:
    whole = run_of(name)
    whole.steps(0, STEPS)
    if name not in TOKENS and not REGISTRY[name].profiling:
        whole.speed.verify()
    for interrupted in range(STEPS + 1):
        first = run_of(name)
        first.steps(0, interrupted)
        torch.save(first.state(), saved := io.BytesIO())
        saved.seek(0)
        second = run_of(name)
        second.restore(torch.load(saved, weights_only=True))
        second.steps(interrupted, STEPS)
        for expected, actual in zip(whole.evaluated(), second.evaluated(), strict=True):
            assert torch.equal(expected, actual), f"resumed after step {interrupted}"
        assert second.speed.report == whole.speed.report


def test_states_of_different_steps_differ() -> None:
    """Without this the test above could pass on methods whose state never changes."""
    early, late = run_of("ema"), run_of("ema")
    early.steps(0, 2)
    late.steps(0, 4)
    assert not torch.equal(early.evaluated()[0], late.evaluated()[0])


@pytest.mark.parametrize("name", REGISTRY)
def test_a_state_with_unknown_entries_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        example(name).hooks().load_state_dict({"unknown": 1})
