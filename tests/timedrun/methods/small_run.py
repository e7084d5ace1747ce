"""A short training run that calls the methods at every place, and a working example of each method."""

import copy
import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from image_classification.model import ModelConfig, build_model
from timedrun.methods import REGISTRY, Method, stack

STEPS = 6
EXAMPLES: dict[str, dict[str, Any]] = {
    "factorize": {"min_channels": 8, "min_features": 1000},
    "gyro_dropout": {"sigma": 6, "tau": 2},
    "ghost_batch_norm": {"ghost_batch": 2},
    "squeeze_excite": {"min_channels": 4, "latent_channels": 0.25},
    "stochastic_depth": {"kind": "block", "rate": 0.9},
    "ema": {"half_life": 2, "update_interval": 2},
    "layer_freezing": {"start": 0.2, "level": 0.5},
    "sam": {"interval": 2},
    "selective_backprop": {"start": 0.0, "interrupt": 3},
    "info_batch": {"start": 0.2},
    "swa": {"start": 0.2, "end": 0.6},
    "gradient_clipping": {"by": "adaptive", "threshold": 0.01},
    "progressive_resizing": {"delay": 0.2, "finetune": 0.2, "increment": 1},
    "sequence_length_warmup": {"steps": STEPS, "duration": 1.0, "min_length": 4, "max_length": 16, "step_size": 4},
}
"""Settings that act within STEPS steps of `SmallRun`, where the defaults do not."""
TOKENS = ("alibi", "fused_layers", "gated_linear_units", "masked_head", "sequence_length_warmup", "unpadding")
"""Methods for sequences of tokens, on which `TokenRun` trains."""


def example(name: str) -> Method:
    return REGISTRY[name](**EXAMPLES.get(name, {}))


@functools.cache
def untrained_model() -> nn.Module:
    """Return a residual network with a layer of every kind that methods change."""
    model = build_model(
        ModelConfig(block="bottleneck", layers=(1, 2), widths=(4, 8), stem="imagenet", channels=3, classes=4), seed=1
    )
    patches = nn.Conv2d(3, 24, 2)  # of a shape that can whiten
    model.conv1 = nn.Sequential(patches, nn.Conv2d(24, 4, 7, 2, padding=3, bias=False))
    norms = nn.LayerNorm(32), nn.GroupNorm(2, 32)
    model.fc = nn.Sequential(*norms, nn.Dropout(0.1), nn.Linear(32, 16), nn.Linear(16, 4))
    return model


def small_model() -> nn.Module:
    return copy.deepcopy(untrained_model())


class SmallRun:
    """Six steps of SGD on noise that depends on the step alone."""

    def __init__(self, *methods: Method) -> None:
        self.speed = stack(*methods, seed=3)
        self.autocast = any(method.name.startswith("low_precision") for method in methods)
        self.model = self.speed.model(small_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.speed.require_in(self.optimizer)
        torch.manual_seed(0)

    def losses(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            return F.cross_entropy(self.model(images), labels, reduction="none")

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        generator, labels = torch.Generator().manual_seed(step), torch.arange(4)
        size = self.speed.input_size(32, step / STEPS)
        images = torch.randint(256, (4, 3, size, size), dtype=torch.uint8, generator=generator)
        samples = np.arange(4 * step, 4 * step + 4)
        images = self.speed.augment(images, samples, epoch=1).float() / 128 - 1
        self.speed.before_step(self.model, step, step / STEPS, samples % 8)
        return self.speed.batch(*self.speed.select(images, labels, self.losses), 4)

    def step(self, step: int) -> Tensor:
        """Take step `step` (from 0) and return its loss."""
        inputs, targets = self.batch(step)

        def compute(reduced: bool) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                logits = self.speed.outputs(self.model(inputs))
            hard = not targets.is_floating_point()
            loss = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten() if hard else targets)
            loss.backward()
            return loss.detach()

        loss = self.speed.backward(compute, self.model)
        self.speed.gradients(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.speed.after_step(self.model)
        return loss

    def steps(self, first: int, end: int) -> None:
        for step in range(first, end):
            assert self.step(step).isfinite()

    def state(self) -> dict[str, Any]:
        model = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        optimizer, methods = self.optimizer.state_dict(), self.speed.state_dict()
        return {"model": model, "optimizer": optimizer, "methods": methods, "random": torch.get_rng_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.speed.load_state_dict(state["methods"])
        torch.set_rng_state(state["random"])

    def evaluated(self) -> list[Tensor]:
        """Return all training tensors, and the output that an evaluation sees."""
        images = torch.linspace(-1, 1, 3072).reshape(1, 3, 32, 32)
        with self.speed.evaluation(self.model), torch.no_grad():
            output = self.model.eval()(images)
        self.model.train()
        return [output, *self.model.state_dict().values()]


class TokenRun(SmallRun):
    """Six steps of an embedding on tokens, without the methods' surgery, which changes GPT-2 models: its result is
    weights, which any state dict holds."""

    def __init__(self, *methods: Method) -> None:
        self.speed, self.autocast = stack(*methods, seed=3), False
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(11, 8), nn.Dropout(0.5), nn.Linear(8, 11))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(11, (2, 17), generator=torch.Generator().manual_seed(step))
        self.speed.before_step(self.model, step, step / STEPS)
        return self.speed.batch(tokens[:, :-1], tokens[:, 1:], 11)

    def evaluated(self) -> list[Tensor]:
        return list(self.model.state_dict().values())
