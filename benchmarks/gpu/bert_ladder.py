"""Steps of BERT-Large, from transformers' eager model to timedrun's: sequences and tokens per second of each rung.

Usage: python -m benchmarks.gpu.bert_ladder --out results/gpu/DATE-GPU [--rungs NAME ...] [--store FOLDER] [--tiny]

Global batch 448. Sequences of random tokens have the lengths of MLPerf's training set (mean 254, mean square 95,000);
--store takes a prepared store instead. First, loss and gradients are compared with those of transformers' eager model
in fp32 without TF32: in fp32, of every composition of timedrun's model, whose attention is then sdpa's; and in bf16, of
every rung as it is timed, with its attention kernel and compiled. Then the benchmark's own training step is timed, the
rungs in turns. The last rung but one is wikipedia_methods itself, with its micro-batch; the last has the method float8
and is compared with transformers' model with the same method.

Needs the packages of pyproject.toml's `dependencies` and transformers. On a machine without a network, carry those that
it lacks: `pip install --no-deps --target carried mlperf-logging==4.1.68 tyro cattrs attrs ...`, then
PYTHONPATH=carried:.:logging. The rung `+ float8` needs an H100 or newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from benchmarks.gpu.block import Block, LossGradients, attention_weights, parser
from benchmarks.unpadded_step import sampled_batch
from language_model.build import build_model
from language_model.collator import MaskedBatch
from language_model.configs import ALL_SPEED_UPS, BertRunConfig, wikipedia_baseline, wikipedia_methods
from language_model.encoder import build_bert
from language_model.model import build_reference
from language_model.settings import BertArchitecture, SpeedUps
from language_model.text.synthetic_store import sampled_lengths, write_synthetic_store
from language_model.weights import ALIASES, to_own
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_times import speed_up
from timedrun.benchmark import find
from timedrun.methods import Float8, stack
from timedrun.training.precision import Precision, set_backends

TINY = BertArchitecture(layers=2, hidden=64, heads=4, intermediate=256, positions=64, vocabulary=2048)
UNPADDED = SpeedUps(unpadding=True, attention="auto", fused_qkv=True, fused_optimizer=True, row_multiple=128)
SUBSET = replace(UNPADDED, masked_head=True, last_layer_subset=True, pad_vocabulary=64)
OWN = {
    "unpadded": UNPADDED,
    "+ masked head, subset": SUBSET,
    "+ fused, 16-bit residual": ALL_SPEED_UPS,
}
"""Rungs of timedrun's model, each with the speed-ups of the one before."""
LOSS, GRADIENT = 1e-4, 1e-3
"""Largest relative difference from transformers in fp32: of the loss; of the norm of any tensor's gradient."""


def rungs(tiny: bool) -> dict[str, BertRunConfig]:
    """Return the configs of the ladder. Tiny ones are not compiled."""
    last = replace(wikipedia_methods(), start="random")
    last = replace(last, compile=not tiny, data=replace(last.data, eval_batch=wikipedia_baseline().micro_batch))
    if tiny:
        data = replace(last.data, longest=64, max_predictions=12, eval_batch=8)
        last = replace(last, device="cpu", global_batch=16, micro_batch=16, architecture=TINY, data=data)
        last = replace(last, max_samples=16 * last.schedule.steps, warm_up_steps=1)
    own = replace(last, micro_batch=8 if tiny else wikipedia_baseline().micro_batch)
    base = replace(own, implementation="transformers", compile=False, speed=wikipedia_baseline().speed)
    sdpa = replace(base, speed=SpeedUps(attention="sdpa"))
    return {
        "HF eager": base,
        "HF sdpa": sdpa,
        "HF sdpa, compiled": replace(sdpa, compile=not tiny),
        **{name: replace(own, compile=False, speed=speed) for name, speed in OWN.items()},
        "+ compiled": own,
        "wikipedia_methods": last,
        "+ float8": replace(last, speed=replace(last.speed, fused_dense_gelu_dense=False), methods=(Float8(),)),
    }


def compare_in_fp32(block: Block, architecture: BertArchitecture) -> None:
    """Check loss and gradients of timedrun's compositions against transformers' in fp32, on a batch of four sequences.
    The attention is the one of `auto` in fp32, which on CUDA is sdpa over padded rows."""
    set_backends(tf32=False, cudnn_benchmark=False)
    lengths = sampled_lengths(4, architecture.positions, 1)
    padded, unpadded = (sampled_batch(lengths, architecture, one, 1).to(block.device) for one in (True, False))
    exact = gradients_of(build_reference(architecture, 1, "eager").to(block.device), padded)
    for name, speed in OWN.items():
        own = gradients_of(build_bert(architecture, 1, speed).to(block.device), unpadded)
        apart = max(own.distances(own_names(exact, own, architecture).gradients).values())
        difference = abs(own.loss - exact.loss) / exact.loss
        found = {"loss": own.loss, "transformers": exact.loss, "loss apart": difference, "gradients apart": apart}
        block.check(f"{name}: fp32 as transformers", difference <= LOSS and apart <= GRADIENT, found)


def compare_as_timed(block: Block, chosen: Mapping[str, BertRunConfig]) -> None:
    """Check loss and gradients of each rung as it is timed, in bf16, against transformers' eager ones in fp32. Most of
    the sequences are short, so that a row that attends to another sequence, or to padding, changes much."""
    set_backends(tf32=False, cudnn_benchmark=False)
    config = next(iter(chosen.values()))
    architecture = config.architecture
    lengths = np.append(sampled_lengths(7, architecture.positions // 4, 2), architecture.positions)
    padded = sampled_batch(lengths, architecture, True, 2).to(block.device)
    reference = build_reference(architecture, config.seed, "eager").to(block.device)
    exact = gradients_of(reference, padded)
    reference.zero_grad()
    usual = gradients_of(reference, padded, Precision("bf16", block.device)).distances(exact.gradients)
    usual8: dict[str, float] = {}
    if any(rung.methods for rung in chosen.values()):
        reference.zero_grad()
        reference = stack(Float8()).model(reference)
        usual8 = gradients_of(reference, padded, Precision("bf16", block.device)).distances(exact.gradients)
    del reference
    for name, rung in chosen.items():
        set_backends(tf32=rung.tf32, cudnn_benchmark=rung.cudnn_benchmark)
        model = stack(*rung.methods).model(build_model(rung, torch.device("cpu"))).to(block.device)
        if rung.compile:
            model.compile()
        batch = padded
        if rung.speed.unpadding:
            batch = sampled_batch(lengths, architecture, False, 2, rung.speed.row_multiple).to(block.device)
        timed = gradients_of(model, batch, Precision(rung.precision, block.device))
        wanted = exact if rung.implementation == "transformers" else own_names(exact, timed, architecture)
        expected = usual8 if rung.methods else usual
        block.compare(f"{name}: as timed, as transformers in fp32", timed, wanted, expected, most=attention_weights)
        del model, timed
        if block.device.type == "cuda":
            torch.cuda.empty_cache()


def gradients_of(model: nn.Module, batch: MaskedBatch, precision: Precision | None = None) -> LossGradients:
    """Return mean loss and gradients, by default without autocast."""
    with precision.autocast() if precision else nullcontext():
        loss = model(batch) / batch.global_masked
    return LossGradients.of(loss, {name.removeprefix("model."): one for name, one in model.named_parameters()})


def own_names(exact: LossGradients, own: LossGradients, architecture: BertArchitecture) -> LossGradients:
    """Return transformers' gradients under the names, and with the shapes, of those of timedrun's model."""
    known = {name: one for name, one in exact.gradients.items() if name not in ALIASES}
    shapes = {name: tuple(one.shape) for name, one in own.gradients.items()}
    return exact._replace(gradients=to_own(known, shapes, architecture))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--store", type=Path, help="prepared text (default: random tokens, lengths as MLPerf's)")
    options.add_argument("--rungs", nargs="+", help="of the ladder, by name (default: all)")
    options.add_argument("--chunks", type=int, default=5, help="chunks of each rung (default 5)")
    arguments = options.parse_args()
    block = Block("bert_ladder", arguments)
    ladder = rungs(block.tiny)
    chosen = {name: config for name, config in ladder.items() if not arguments.rungs or name in arguments.rungs}
    if not chosen:
        options.error(f"no such rung; the rungs are: {', '.join(ladder)}")
    architecture = ladder["HF eager"].architecture
    compare_in_fp32(block, architecture)
    compare_as_timed(block, chosen)
    if block.device.type == "cuda":
        torch.cuda.empty_cache()
    plan = StepPlan(positions=(0.5,), chunks=2 if block.tiny else arguments.chunks, chunk=2, skip=2, evaluate=False)
    with TemporaryDirectory() as folder:
        store = arguments.store or Path(folder) / "store"
        if not arguments.store:
            count = 8 * ladder["HF eager"].global_batch
            write_synthetic_store(store, count, longest=architecture.positions, vocabulary=architecture.vocabulary)
        benchmark = find("language_model")
        rows = block.measure("BERT-Large", benchmark, chosen, plan=plan, data_folder=store, counted=1)
    bases = [name for name in ladder if name.startswith("HF") and name in rows]
    gains = {name: {one: speed_up(rows[one].times, row.times) for one in bases} for name, row in rows.items()}
    block.values["speed_ups"] = {name: {one: gain._asdict() for one, gain in of.items()} for name, of in gains.items()}
    shown = [
        [name, f"{row.samples_per_second:,.1f}", f"{row.tokens_per_second or 0:,.0f}"]
        + [f"{gains[name][one].ratio:.2f} [{gains[name][one].low:.2f}, {gains[name][one].high:.2f}]" for one in bases]
        for name, row in rows.items()
    ]
    block.show("useful work", ["rung", "sequences/s", "tokens/s", *(f"x {name}" for name in bases)], shown)
    block.finish()


if __name__ == "__main__":
    main()
