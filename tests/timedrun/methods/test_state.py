"""A run interrupted at any step and resumed from its saved state ends bit for bit like one that was not."""

import io

import pytest
import torch

from tests.timedrun.methods.small_run import STEPS, TOKENS, SmallRun, TokenRun, example
from timedrun.methods import REGISTRY


def run_of(name: str) -> SmallRun:
    return (TokenRun if name in TOKENS else SmallRun)(example(name))


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


@pytest.mark.parametrize("name", REGISTRY)
def test_a_state_with_unknown_entries_is_refused(name):
    with pytest.raises(ValueError):
        example(name).hooks().load_state_dict({"unknown": 1})
