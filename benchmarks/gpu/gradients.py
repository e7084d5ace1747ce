"""Loss and gradients of configs, as they are trained on a GPU, against an independent step, before steps are timed.

Usage: python -m benchmarks.gpu.gradients BENCHMARK CONFIG [CONFIG ...] --out FILE [--data DATA] [OVERRIDE ...]

The words are those of `timedrun profile --interleaved`, which times the steps: overrides are for all configs,
`--b.compile` is for the second. README.md has the commands of this folder. Each config is compared in its precision,
compiled, and with its attention kernel and layout, with an eager model in fp32, and timedrun's BERT in fp32 too.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from image_classification.build import build as build_images
from image_classification.configs import ImageRunConfig
from image_classification.datasets import declared
from image_classification.model import Bottleneck
from judging.ground.result_files import write_json
from language_model.batches import collate_for
from language_model.build import build_model as build_bert
from language_model.collator import MaskedBatch
from language_model.configs import BertRunConfig
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.model import Decoder, NextTokenLoss
from language_model.gpt.model import build_model as build_gpt
from language_model.settings import SpeedUps
from language_model.text.store import MaskedSequences
from language_model.text.synthetic_store import sampled_lengths
from language_model.weights import ALIASES, to_own
from timedrun.evidence.config_sides import sides_of
from timedrun.methods import ChannelsLast, Float8, stack
from timedrun.methods.training.loss import LOSSES
from timedrun.methods.training.precision import Precision, set_backends
from timedrun.runner.benchmark import find
from timedrun.runner.config import RunConfig, dump
from timedrun.runner.distributed.process_group import ProcessGroup, choose_device
from timedrun.runner.run.origin import of_measurements

FURTHER: Final = 4.0
"""Largest ratio of distances from fp32, of a timed step over the usual one in bf16. Measured on a CPU: in BERTs of 2 to
24 layers a 16-bit residual stream reaches 1.3 to 2.4, and attention into one neighbouring sequence 6 to 22."""
BF16: Final = 2**-8
"""Relative spacing of bf16's numbers: losses differ less, and distances below it are not compared."""
LARGEST: Final = 0.5
"""Largest distance of any one gradient from fp32: a wrong one is about 1 away."""
ATTENTION: Final = ("query.weight", "key.weight", "value.weight", "qkv.weight")
"""Gradients that a wrong mask changes first. Their median is compared, too."""
LOSS, GRADIENT = 1e-4, 1e-3
"""Largest relative difference of BERTs in fp32: of the loss; of the norm of any tensor's gradient."""
MASKED_SHARE = 0.15
RESIDUAL = 0.2
"""Scale of each block's last batch norm of a ResNet that is compared: a random ResNet magnifies rounding."""
IMAGES_FURTHER = 2.0
"""FURTHER, over eager bf16, of images. On a CPU, ResNet-50 with BlurPool at 96 px: eager bf16, in which rounding
switches ReLUs, is 0.31 away, and one with another kernel, padding or stride of the blur 1.2."""


@dataclass(frozen=True)
class Check:
    """Outcome of a comparison."""

    name: str
    passed: bool
    found: Mapping[str, float]


class LossGradients(NamedTuple):
    """Loss of one batch, and the gradient of each parameter."""

    loss: float
    gradients: dict[str, Tensor]

    @classmethod
    def of(cls, loss: Tensor, parameters: Mapping[str, Tensor]) -> Self:
        """Compute the gradients of `loss`."""
        loss.backward()  # type: ignore[no-untyped-call]
        return cls(
            float(loss.detach()),
            {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None},
        )

    def distances(self, exact: Mapping[str, Tensor]) -> dict[str, float]:
        """Return by name the norm of each gradient's difference from `exact`, over the norm of that; of the keys'
        biases, whose gradients are zero but for rounding, none."""
        values = {}
        for name, gradient in self.gradients.items():
            if name.endswith("key.bias"):
                continue
            wanted = exact[name].to(gradient.device, torch.float64)
            values[name] = float((gradient.double() - wanted).norm() / wanted.norm())
        return values


def gradients_of(config: RunConfig, device: torch.device) -> LossGradients:
    """Return loss and gradients of a fixed small batch, as `config` computes them on `device`."""
    set_backends(device, tf32=config.tf32 and config.precision != "fp32", cudnn_benchmark=config.cudnn_benchmark)
    if isinstance(config, BertRunConfig):
        return bert_gradients(config, device)
    if isinstance(config, ImageRunConfig):
        return image_gradients(config, device)
    assert isinstance(config, GptRunConfig)
    return gpt_gradients(config, device)


def sampled_batch(config: BertRunConfig, lengths: NDArray[np.int64], device: torch.device) -> MaskedBatch:
    """Return a batch of random tokens, 15 % of them masked, in the layout of `config`; the same tokens in each."""
    random, vocabulary = np.random.default_rng(2), config.architecture.vocabulary
    counts = np.maximum(1, (MASKED_SHARE * lengths).round().astype(np.int64))
    places = zip(lengths.cumsum() - lengths, lengths, counts, strict=True)
    sequences = MaskedSequences(
        tokens=random.integers(1, vocabulary, lengths.sum()),
        lengths=lengths,
        first=lengths // 2,
        masked=np.concatenate([start + np.sort(random.permutation(size)[:count]) for start, size, count in places]),
        labels=random.integers(1, vocabulary, counts.sum()),
    )
    return collate_for(config, sequences, device, len(lengths), len(sequences.masked))


def bert_gradients(config: BertRunConfig, device: torch.device) -> LossGradients:
    # Mostly short sequences, so that a row that attends to another sequence, or to padding, changes much.
    positions = config.architecture.positions
    batch = sampled_batch(config, np.append(sampled_lengths(7, positions // 4, 2), positions), device)
    model: nn.Module = build_bert(config, torch.device("cpu"))
    stack(*config.methods).model(model).to(device)
    if config.compile:
        model.compile()
    with Precision(config.precision, device).autocast():
        loss = model(batch) / batch.global_masked
    return LossGradients.of(
        loss, {name.removeprefix("model."): parameter for name, parameter in model.named_parameters()}
    )


def image_gradients(config: ImageRunConfig, device: torch.device) -> LossGradients:
    # As many images as are timed, so that the timed process finds the compiled code in the cache.
    size, generator = config.data.train_size, torch.Generator().manual_seed(1)
    images = torch.rand(config.micro_batch, 3, size, size, generator=generator).to(device)
    labels = torch.randint(config.model.classes, (config.micro_batch,), generator=generator).to(device)
    config = replace(config, model=replace(config.model, initialisation="kaiming"))
    parts = build_images(config, ProcessGroup(0, 1, 0, device), declared(config.data), device)
    for module in parts.model.modules():
        if isinstance(module, Bottleneck):
            nn.init.constant_(module.bn3.weight, RESIDUAL)
    if config.compile:
        parts.model.compile(dynamic=False)
    parts.methods.before_step(parts.model, 0, 0.0)
    inputs, targets = parts.methods.batch(images, labels, config.model.classes)
    with Precision(config.precision, device).autocast():
        loss = LOSSES[config.loss](parts.model(inputs), targets)
    return LossGradients.of(loss, dict(parts.model.named_parameters()))


def gpt_gradients(config: GptRunConfig, device: torch.device) -> LossGradients:
    # Few layers, for the CPU; with zero projections no gradient would reach the attention. Two sequences hold several
    # documents, in the middle of the window's warm-up.
    model = replace(config.model, layers=max(2, 2 * config.model.value_embeddings), zero_projections=False)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.vocabulary - 1, (2, model.context + 1), generator=generator)
    tokens[torch.rand(tokens.shape, generator=generator) < 8 / model.context] = model.vocabulary - 1
    net = stack(*config.methods).model(build_gpt(model, 1)).to(device)
    if isinstance(net, Decoder) and net.window is not None:
        net.window.fill_(config.window(config.schedule.steps // 2))
    summed = NextTokenLoss(net)
    if config.compile:
        summed.compile()
    inputs, targets = (part.contiguous().to(device) for part in (tokens[:, :-1], tokens[:, 1:]))
    with Precision(config.precision, device).autocast():
        loss = summed(inputs, targets) / targets.numel()
    return LossGradients.of(loss, dict(net.named_parameters()))


@cache
def reference(config: RunConfig, device: torch.device) -> tuple[LossGradients, dict[str, float]]:
    """Return loss and gradients of the eager `config` in fp32, and the distances of those in its precision."""
    exact_methods = tuple(method for method in config.methods if not isinstance(method, Float8))
    exact = gradients_of(replace(config, precision="fp32", methods=exact_methods), device)
    return exact, gradients_of(config, device).distances(exact.gradients)


def compared(label: str, config: RunConfig) -> Iterator[Check]:
    """Yield the checks of a config against a reference: transformers' eager BERT, a ResNet in the usual memory layout,
    or a GPT under dense masks on the CPU."""
    device = choose_device(config.device)
    methods = tuple(method for method in config.methods if not isinstance(method, ChannelsLast))
    plain = replace(config, name="", notes="", compile=False, methods=methods)
    own_bert = isinstance(config, BertRunConfig) and config.implementation == "timedrun"
    if isinstance(plain, BertRunConfig):
        plain = replace(plain, micro_batch=0, implementation="transformers", speed=SpeedUps())
    exact, usual = reference(plain, torch.device("cpu") if isinstance(config, GptRunConfig) else device)

    def named(timed: LossGradients) -> LossGradients:
        """Return `exact` under the names, and with the shapes, of the gradients of timedrun's BERT."""
        known = {name: gradient for name, gradient in exact.gradients.items() if name not in ALIASES}
        shapes = {name: tuple(gradient.shape) for name, gradient in timed.gradients.items()}
        return exact._replace(gradients=to_own(known, shapes))

    if own_bert:
        timed = gradients_of(replace(config, precision="fp32", compile=False, methods=()), device)
        apart = max(timed.distances(named(timed).gradients).values())
        difference = abs(timed.loss - exact.loss) / exact.loss
        found = {"loss apart": difference, "gradients apart": apart}
        yield Check(f"{label}: fp32 as transformers", difference <= LOSS and apart <= GRADIENT, found)
    timed = gradients_of(config, device)
    images = isinstance(config, ImageRunConfig)
    further, largest, kinds = (IMAGES_FURTHER, math.inf, [""]) if images else (FURTHER, LARGEST, ["", ATTENTION])
    wanted = named(timed) if own_bert else exact
    distances = timed.distances(wanted.gradients)
    found = {"loss apart": abs(timed.loss - wanted.loss) / abs(wanted.loss), "largest": max(distances.values())}
    passed = found["loss apart"] <= BF16 and found["largest"] <= largest
    for endings in kinds:  # rounding alone decides how far the usual step in this precision is away
        own, theirs = (
            statistics.median(value for name, value in of.items() if name.endswith(endings))
            for of in (distances, usual)
        )
        kind = "median of attention's" if endings else "median"
        found |= {kind: own, f"{kind}, usual": theirs}
        passed = passed and own <= further * max(theirs, BF16)
    yield Check(f"{label}: as timed, as eager fp32", passed, found)
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main(words: list[str]) -> None:
    """Compare the configs, write all values to a file, and raise SystemExit if a comparison failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--out", type=Path, required=True, help="JSON file, such as results/gpu/DATE-GPU/bert.json")
    given, overrides = parser.parse_known_args(words)
    sides = sides_of(find(given.benchmark), given.configs, given.data, overrides, verb="profile")
    checks: list[Check] = []
    for side in sides:
        for check in compared(side.label, side.config):
            print(f"{'passed' if check.passed else 'FAILED'}: {check.name}: {dict(check.found)}", flush=True)
            checks.append(check)
    values = {"configs": {side.label: dump(side.config) for side in sides}, "checks": [vars(check) for check in checks]}
    write_json(given.out, {**values, **of_measurements(choose_device(sides[0].config.device).type)})
    if failed := [check.name for check in checks if not check.passed]:
        raise SystemExit(f"not as the reference, so no time of it counts: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
