"""A run interrupted at any step and resumed from its saved state ends bit for bit like one that was not."""

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from timedrun.methods import EMA, REGISTRY, Method, ProgressiveResizing, SequenceLengthWarmup, Stack, stack

STEPS = 6
SHORT: dict[str, Method] = {
    "ema": EMA(half_life=2, update_interval=2),
    "progressive_resizing": ProgressiveResizing(delay=0.2, finetune=0.2, increment=1),
    "sequence_length_warmup": SequenceLengthWarmup(steps=1000),
}
TOKENS = ("alibi", "sequence_length_warmup")
"""Methods for token models, which have the same test with a model of theirs beside them."""


class Run:
    """Six steps of SGD on noise that depends on the step alone, with one method."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.Conv2d(16, 16, 3, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 4),
        )
        self.speed: Stack = stack(SHORT.get(name) or REGISTRY[name]())
        self.model = self.speed.model(network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            generator = torch.Generator().manual_seed(step)
            images = torch.randn(4, 3, 8, 8, generator=generator)
            inputs, targets = self.speed.batch(images, torch.arange(4), (step - 1) / STEPS, 4)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(inputs), targets).backward()
            self.optimizer.step()
            self.speed.after_step(self.model, step)

    def state(self) -> dict[str, Any]:
        model = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return {"model": model, "optimizer": self.optimizer.state_dict(), "methods": self.speed.state_dict()}

    def evaluated(self) -> list[torch.Tensor]:
        """All training tensors, and the output that an evaluation sees."""
        with self.speed.evaluation(self.model), torch.no_grad():
            output = self.model.eval()(torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8))
        self.model.train()
        return [output, *self.model.state_dict().values()]


@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in TOKENS])
def test_resuming_at_any_step_equals_no_interruption(name: str) -> None:
    whole = Run(name)
    whole.steps(1, STEPS)
    whole.speed.verify()
    for interrupted in range(STEPS + 1):
        first = Run(name)
        first.steps(1, interrupted)
        torch.save(first.state(), saved := io.BytesIO())
        saved.seek(0)
        state = torch.load(saved, weights_only=True)
        second = Run(name)
        second.model.load_state_dict(state["model"])
        second.optimizer.load_state_dict(state["optimizer"])
        second.speed.load_state_dict(state["methods"])
        second.steps(interrupted + 1, STEPS)
        for expected, actual in zip(whole.evaluated(), second.evaluated(), strict=True):
            assert torch.equal(expected, actual), f"resumed after step {interrupted}"
        assert second.speed.report == whole.speed.report


class TokenRun:
    """Six steps of an embedding on tokens that depend on the step alone, with a token method's part in the training
    loop. What such a method does to a GPT-2 model is weights, which any state dict holds."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        warmup = SequenceLengthWarmup(steps=12, duration=0.5, min_length=4, max_length=16, step_size=4)
        self.hooks = (warmup if name == "sequence_length_warmup" else REGISTRY[name]()).hooks()
        self.model = nn.Sequential(nn.Embedding(11, 8), nn.Dropout(0.5), nn.Linear(8, 11))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            torch.manual_seed(step)
            tokens = torch.randint(11, (2, 17), generator=torch.Generator().manual_seed(step))
            inputs, targets = self.hooks.batch(tokens[:, :-1], tokens[:, 1:], (step - 1) / STEPS, 11)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten()).backward()
            self.optimizer.step()


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_method_resumed_at_any_step_equals_no_interruption(name: str) -> None:
    whole = TokenRun(name)
    whole.steps(1, STEPS)
    assert whole.hooks.effect() is not None
    for interrupted in range(STEPS + 1):
        first, second = TokenRun(name), TokenRun(name)
        first.steps(1, interrupted)
        second.model.load_state_dict(first.model.state_dict())
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        second.hooks.load_state_dict(first.hooks.state_dict())
        second.steps(interrupted + 1, STEPS)
        for expected, actual in zip(whole.model.parameters(), second.model.parameters(), strict=True):
            assert torch.equal(expected, actual), f"resumed after step {interrupted}"
        assert second.hooks.effect() == whole.hooks.effect()


def test_states_of_different_steps_differ() -> None:
    """Without this the test above could pass on methods whose state never changes."""
    early, late = Run("ema"), Run("ema")
    early.steps(1, 2)
    late.steps(1, 4)
    assert not torch.equal(early.evaluated()[0], late.evaluated()[0])


@pytest.mark.parametrize("name", REGISTRY)
def test_a_state_with_unknown_entries_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        (SHORT.get(name) or REGISTRY[name]()).hooks().load_state_dict({"unknown": 1})
