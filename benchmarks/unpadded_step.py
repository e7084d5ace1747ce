"""Time a BERT training step on a CPU: timedrun's encoder, one more speed-up at a time, against transformers'.

Usage: python benchmarks/unpadded_step.py [--layers 4 --hidden 256 --batch 8 --rounds 5 --threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from language_model.collator import MaskedBatch, collate
from language_model.encoder import build_bert
from language_model.model import build_reference, import_transformers
from language_model.settings import BERT_LARGE, BertArchitecture, SpeedUps
from language_model.text.store import MaskedSequences
from language_model.text.synthetic_store import sampled_lengths
from timedrun.training.sampling import stream_seed

MASKED_SHARE = 0.15
QUARTILES = (0.25, 0.5, 0.75)


def sampled_batch(
    lengths: NDArray[np.int64], architecture: BertArchitecture, padded: bool, seed: int, row_multiple: int = 1
) -> MaskedBatch:
    """Return a batch of random tokens, 15 % of them masked; the same tokens padded and unpadded."""
    random = np.random.default_rng(stream_seed(seed, "batch"))
    counts = np.maximum(1, (MASKED_SHARE * lengths).round().astype(np.int64))
    places = zip(lengths.cumsum() - lengths, lengths, counts, strict=True)
    sequences = MaskedSequences(
        tokens=random.integers(1, architecture.vocabulary, lengths.sum()),
        lengths=lengths,
        first=lengths // 2,
        masked=np.concatenate([start + np.sort(random.permutation(size)[:count]) for start, size, count in places]),
        labels=random.integers(1, architecture.vocabulary, counts.sum()),
    )
    return collate(
        sequences,
        longest=architecture.positions,
        padded=padded,
        row_multiple=row_multiple,
        global_samples=len(lengths),
        global_masked=len(sequences.masked),
    )


def rungs() -> dict[str, SpeedUps]:
    """Return settings with one more speed-up each, in cumulative order."""
    steps: dict[str, dict[str, object]] = {
        "own, all off": {},
        "+ sdpa": {"attention": "sdpa_padded"},
        "+ masked head": {"masked_head": True},
        "+ unpadding": {"unpadding": True, "attention": "sdpa_grouped"},
        "+ last-layer subset": {"last_layer_subset": True},
        "+ fused QKV": {"fused_qkv": True},
        "+ fused dropout-add-norm": {"fused_dropout_add_norm": True},
        "+ fused dense-GELU-dense": {"fused_dense_gelu_dense": True},
        "+ fused optimizer": {"fused_optimizer": True},
    }
    found, current = {}, SpeedUps()
    for name, change in steps.items():
        current = replace(current, **change)  # type: ignore[arg-type]
        found[name] = current
    return found


def stepper(model: nn.Module, batch: MaskedBatch, fused: bool) -> Callable[[], float]:
    """Return a function that takes one training step and returns its seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, fused=fused)
    model.train()

    def step() -> float:
        began = time.perf_counter()
        loss = model(batch) / batch.global_masked
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    return step


def proportional(layers: int, hidden: int, positions: int) -> int:
    """Return the vocabulary for which the head's part of the padded forward pass is that of BERT-Large.

    With 30,522 words the head dominates a small encoder, and omitting its unused rows would look like a speed-up of 5.
    """
    large = BERT_LARGE
    per_token = large.layers * (8 * large.hidden**2 + 4 * large.hidden * (large.intermediate + large.positions))
    share = 2 * large.hidden * (large.hidden + large.vocabulary) / per_token
    return round(share * layers * (24 * hidden**2 + 4 * hidden * positions) / (2 * hidden)) - hidden


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    numbers = {"layers": 4, "hidden": 256, "heads": 4, "positions": 512}
    numbers |= {"batch": 8, "rounds": 5, "threads": 1, "seed": 0}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocabulary", type=int, help="by default the head has BERT-Large's share of the baseline")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    architecture = BertArchitecture(
        layers=arguments.layers,
        hidden=arguments.hidden,
        heads=arguments.heads,
        intermediate=4 * arguments.hidden,
        vocabulary=arguments.vocabulary or proportional(arguments.layers, arguments.hidden, arguments.positions),
        positions=arguments.positions,
    )
    lengths = sampled_lengths(arguments.batch, arguments.positions, arguments.seed)
    batches = {padded: sampled_batch(lengths, architecture, padded, arguments.seed) for padded in (True, False)}
    steps = {
        f"transformers {attention}": stepper(build_reference(architecture, 0, attention), batches[True], False)
        for attention in ("eager", "sdpa")
    }
    for name, speed_ups in rungs().items():
        model = build_bert(architecture, 0, speed_ups)
        steps[name] = stepper(model, batches[not speed_ups.unpadding], speed_ups.fused_optimizer)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(arguments.rounds + 1):
        for name in list(steps) if number % 2 else list(steps)[::-1]:
            taken = steps[name]()
            if number:  # the first round warms up
                seconds[name].append(taken)
    squares = float((lengths.astype(float) ** 2).mean())
    padding = 1 - lengths.sum() / (len(lengths) * arguments.positions)
    print(f"lengths: mean {lengths.mean():.1f}, mean square {squares:,.0f}, padding {padding:.1%}")
    print(f"{'seconds a step (quartiles)':>58} {'x eager':>22} {'x sdpa':>22}")
    table = {}
    for name, own in seconds.items():
        row = {"seconds": np.quantile(own, QUARTILES).tolist()}
        for attention in ("eager", "sdpa"):
            theirs = seconds[f"transformers {attention}"]
            row[f"over_{attention}"] = np.quantile(np.divide(theirs, own), QUARTILES).tolist()
        table[name] = row
        shown = ["{1:7.3f} ({0:.3f} .. {2:.3f})".format(*values) for values in row.values()]
        print(f"{name:>28} {shown[0]:>29} {shown[1]:>22} {shown[2]:>22}")
    if arguments.json:
        result = {
            "command": ["python", *(Path(word).name if "/" in word else word for word in sys.argv)],
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": import_transformers().__version__,
            },
            "threads": torch.get_num_threads(),
            "architecture": asdict(architecture),
            "batch": len(lengths),
            "lengths": {"mean": float(lengths.mean()), "mean_square": squares, "padding": float(padding)},
            "rounds": arguments.rounds,
            "median_over_eager": table[list(table)[-1]]["over_eager"][1],
            "rungs": table,
            "seconds": seconds,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
