"""Measure what each method costs: parameters and FLOPs of a reference model, latency of its inference and time of a
training step, each interleaved with the same without the method.

Usage: python benchmarks/method_cost.py [--only NAME ...] [--rounds 9] [--threads 1] [--json results/method_cost.json]

With --only the values of the other methods in the file stay. Parameters and FLOPs are exact. A
training step is the mean of 20 that are spread over a whole run, so a method that acts in a part of it counts in part;
the augmentation of loaded images is measured apart. The learning rate is 0, which changes no time and keeps weights
finite. Times are of the processor, which other processes disturb less than the clock's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.method_cards import COSTS
from image_classification.model import ModelConfig, build_model
from language_model.model import import_transformers
from timedrun.methods import REGISTRY, SWA, Method, SequenceLengthWarmup, stack
from timedrun.methods.card import places
from timedrun.provenance import system

STEPS = 20
CLASSES = 10
SETTINGS: dict[str, Method] = {
    "sequence_length_warmup": SequenceLengthWarmup(steps=STEPS, min_length=32, max_length=128, step_size=32),
    "swa": SWA(interval=0.1),
}
"""Where the defaults do not fit 20 steps: SWA would update its mean in each step of its part of the run."""


def example(name: str) -> Method:
    return SETTINGS.get(name) or REGISTRY[name]()


@dataclass(frozen=True)
class Reference:
    """Model and its inputs. `shape` is that of images, or of token numbers."""

    words: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int

    def inputs(self) -> Tensor:
        if len(self.shape) == 2:
            return torch.randint(self.classes, self.shape)
        return torch.randint(256, self.shape, dtype=torch.uint8).float() / 128 - 1


def resnet(norm: Callable[[int], nn.Module] | None = None, **settings: Any) -> Callable[[], nn.Module]:
    """Return a builder of a residual network, with `norm(channels)` in place of batch normalization."""
    config = ModelConfig(**{"block": "bottleneck", **settings})

    def build() -> nn.Module:
        model = build_model(config, seed=1)
        for parent in list(model.modules()) if norm else ():
            for name, child in parent.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    setattr(parent, name, norm(child.num_features))  # type: ignore[misc]
        return model

    return build


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


def bert(**settings: int) -> Callable[[], nn.Module]:
    eager: dict[str, Any] = {"attn_implementation": "eager"}  # torch counts no FLOPs of its fused one on a CPU
    return lambda: import_transformers().BertForMaskedLM(import_transformers().BertConfig(**settings, **eager))


def gpt2(**settings: int) -> Callable[[], nn.Module]:
    return lambda: import_transformers().GPT2LMHeadModel(import_transformers().GPT2Config(**settings))


LAYERS: dict[str, Any] = {"layers": (1, 1, 1, 1), "widths": (16, 32, 64, 128), "classes": CLASSES}
TOKENS: dict[str, Any] = {"vocab_size": 512}
IMAGES = (
    Reference("ResNet-50, 1 image of 224 pixels", resnet(layers=(3, 4, 6, 3)), (1, 3, 224, 224), 1000),
    Reference("ResNet-14, 16 images of 64 pixels", resnet(**LAYERS), (16, 3, 64, 64), CLASSES),
)
GROUP_NORM = (
    Reference("ResNet-50 with group norm, bf16", resnet(groups, layers=(3, 4, 6, 3)), (1, 3, 224, 224), 1000),
    Reference(
        "ResNet-14 with group norm, bf16, 16 images of 64 pixels", resnet(groups, **LAYERS), (16, 3, 64, 64), CLASSES
    ),
)
WHITENED: dict[str, Any] = {"block": "basic", "stem": "small", "widths": (54, 64, 128), "classes": CLASSES}
PATCHES = (
    Reference(
        "ResNet-14 with 54 channels first, 1 image of 32 pixels",
        resnet(layers=(2, 2, 2), **WHITENED),
        (1, 3, 32, 32),
        CLASSES,
    ),
    Reference(
        "ResNet-8 with 54 channels first, 8 images of 32 pixels",
        resnet(layers=(1, 1, 1), **WHITENED),
        (8, 3, 32, 32),
        CLASSES,
    ),
)
BERT = (
    Reference("BERT-base, 1 sequence of 512 tokens", bert(), (1, 512), 30_522),
    Reference(
        "BERT of 2 layers of 128, 8 sequences of 128 tokens",
        bert(**TOKENS, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512),
        (8, 128),
        512,
    ),
)
GPT2 = (
    Reference("GPT-2, 1 sequence of 1,024 tokens", gpt2(), (1, 1024), 50_257),
    Reference(
        "GPT-2 of 2 layers of 128, 8 sequences of 128 tokens",
        gpt2(**TOKENS, bos_token_id=0, eos_token_id=0, n_positions=128, n_embd=128, n_layer=2, n_head=2),
        (8, 128),
        512,
    ),
)
REFERENCES = {
    "whitening": PATCHES,
    "alibi": GPT2,
    "sequence_length_warmup": GPT2,
    "gated_linear_units": BERT,
    "gyro_dropout": BERT,
    "low_precision_layer_norm": BERT,
    "float8": BERT,
    "low_precision_group_norm": GROUP_NORM,
}
"""Models, large for inference and small for training steps, of the methods that do nothing on IMAGES."""


class TrainingRun:
    """A whole run of STEPS steps on one batch, with every place of a training loop but the loader."""

    def __init__(self, reference: Reference, *methods: Method) -> None:
        torch.manual_seed(0)
        self.classes = reference.classes
        self.methods = stack(*methods)
        self.model = self.methods.model(reference.build()).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0, momentum=0.9)
        self.inputs = reference.inputs()
        self.targets = torch.randint(self.classes, self.inputs.shape[: 1 if self.inputs.ndim == 4 else 2])

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            return F.cross_entropy(self.model(inputs), targets, reduction="none")

    def step(self, step: int) -> None:
        methods, model = self.methods, self.model
        methods.before_step(model, step, step / STEPS)
        inputs, targets = methods.select(self.inputs, self.targets, self.losses)
        inputs, targets = methods.batch(inputs, targets, self.classes)

        def compute(reduced: bool) -> Tensor:
            logits = forward(model, inputs)
            if inputs.ndim == 2:
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            else:
                loss = F.cross_entropy(logits, targets)
            loss.backward()
            return loss.detach()

        methods.backward(compute, model)
        methods.gradients(model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        methods.after_step(model)

    def seconds(self) -> float:
        began = time.process_time()
        for step in range(STEPS):
            self.step(step)
        return time.process_time() - began


def forward(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits of a model of ours or of transformers."""
    found = model(inputs)
    logits: Tensor = getattr(found, "logits", found)
    return logits


def size(reference: Reference, *methods: Method, device: str = "meta") -> tuple[int, int]:
    """Return the parameters of the model, and the FLOPs of an inference of the reference's inputs."""
    with torch.device(device):
        model = stack(*methods).model(reference.build()).eval()
        inputs = reference.inputs()
    with FlopCounterMode(display=False) as counter:
        forward(model, inputs)
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops()


def latency(reference: Reference, *methods: Method) -> Callable[[], float]:
    """Return a function that measures the seconds of one inference."""
    model, inputs = stack(*methods).model(reference.build()).eval(), reference.inputs()

    def seconds() -> float:
        began = time.process_time()
        with torch.inference_mode():
            forward(model, inputs)
        return time.process_time() - began

    return seconds


def ratio(without: Callable[[], float], with_method: Callable[[], float], rounds: int, words: str) -> dict[str, Any]:
    """Return the median and the quartiles of the ratios of `rounds` interleaved pairs, after one for warming up."""
    found = []
    for number in range(rounds + 1):
        order = (without, with_method) if number % 2 else (with_method, without)
        seconds = {function: function() for function in order}
        if number:
            found.append((seconds[without], seconds[with_method]))
    ratios = [second / first for first, second in found]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "model": words,
        "rounds": rounds,
        "median": round(statistics.median(ratios), 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "seconds_without": round(statistics.median(first for first, _ in found), 6),
    }


def augment_seconds(method: Method) -> float:
    """Return the median seconds for which `method` augments one image of 224 pixels."""
    images, samples, methods, found = (
        torch.randint(256, (32, 3, 224, 224), dtype=torch.uint8),
        np.arange(32),
        stack(method),
        [],
    )
    for epoch in range(5):
        began = time.process_time()
        methods.augment(images, samples, epoch)
        found.append((time.process_time() - began) / len(images))
    return statistics.median(found)


def measure(method: Method, rounds: int) -> dict[str, Any]:
    large, small = REFERENCES.get(method.name, IMAGES)
    narrow = method.name.startswith("low_precision")
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        device = "cpu" if narrow else "meta"  # autocast knows no meta device
        (parameters, flops), (own_parameters, own_flops) = size(large), size(large, method, device=device)
        values: dict[str, Any] = {
            "settings": asdict(method),
            "model": large.words,
            "parameters": [parameters, own_parameters],
            "flops": [flops, own_flops],
        }
        if type(method).model is not Method.model:
            values["latency"] = ratio(latency(large), latency(large, method), rounds, large.words)
        if "augment" in places(type(method)):
            values["augment_seconds_per_image"] = round(augment_seconds(method), 6)
        else:
            # Each block is a run of its own: some methods act once in a run.
            values["step"] = ratio(
                lambda: TrainingRun(small).seconds(), lambda: TrainingRun(small, method).seconds(), rounds, small.words
            )
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(REGISTRY), default=list(REGISTRY), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=COSTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.is_file() else {"methods": {}}
    result["environment"] = system.environment().partition("\n\n")[0].splitlines()
    result["threads"] = arguments.threads
    for name in arguments.only:
        result["methods"][name] = measured = measure(example(name), arguments.rounds)
        print(name, json.dumps({key: value for key, value in measured.items() if key != "settings"}), flush=True)
        result["methods"] = {name: result["methods"][name] for name in REGISTRY if name in result["methods"]}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
