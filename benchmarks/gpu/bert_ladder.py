"""Steps of BERT-Large, from transformers' eager model to timedrun's: sequences and tokens per second of each rung.

Usage: python -m benchmarks.gpu.bert_ladder --out results/gpu/DATE-GPU [--rungs NAME ...] [--store FOLDER] [--tiny]

Global batch 448. Sequences of random tokens have the lengths of MLPerf's training set (mean 254, mean square 95,000);
--store takes a prepared store instead. First, in fp32 with TF32 off, loss and gradients of every rung of timedrun's
model are compared with transformers'. Then the benchmark's own training step is timed, bf16, the rungs in turns.

Needs the packages of pyproject.toml's `dependencies` and transformers. On a machine without a network, carry those that
it lacks: `pip install --no-deps --target carried mlperf-logging==4.1.68 tyro cattrs attrs ...`, then
PYTHONPATH=carried:.:logging. FP8 is not measured: timedrun has no FP8 matrix products.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.block import Block, losses_apart, parser
from benchmarks.unpadded_step import sampled_batch
from language_model.configs import ALL_SPEED_UPS, BertRunConfig, wikipedia_baseline
from language_model.encoder import build_bert
from language_model.model import build_reference
from language_model.settings import BertArchitecture, SpeedUps
from language_model.text.synthetic_store import sampled_lengths, write_synthetic_store
from language_model.weights import ALIASES, to_own
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_times import speed_up
from timedrun.benchmark import find
from timedrun.training.precision import set_backends

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
FIRST_LOSSES = 0.02
"""Largest relative difference between rungs in bf16, of the losses of the first steps."""


def rungs(tiny: bool) -> dict[str, BertRunConfig]:
    """Return the configs of the ladder. Tiny ones are not compiled."""
    base = replace(wikipedia_baseline(), start="random")
    base = replace(base, data=replace(base.data, eval_batch=base.micro_batch))
    if tiny:
        data = replace(base.data, longest=64, max_predictions=12, eval_batch=8)
        base = replace(base, device="cpu", global_batch=16, micro_batch=8, architecture=TINY, data=data)
        base = replace(base, max_samples=16 * base.schedule.steps, warm_up_steps=1)
    sdpa = replace(base, speed=SpeedUps(attention="sdpa"))
    own = {name: replace(base, implementation="timedrun", speed=speed) for name, speed in OWN.items()}
    compiled = replace(own["+ fused, 16-bit residual"], compile=not tiny)
    return {
        "HF eager": base,
        "HF sdpa": sdpa,
        "HF sdpa, compiled": replace(sdpa, compile=not tiny),
        **own,
        "+ compiled": compiled,
        "+ 4x micro-batch": replace(compiled, micro_batch=min(base.global_batch, 4 * base.micro_batch)),
    }


def compare_with_transformers(block: Block, architecture: BertArchitecture) -> None:
    """Check loss and gradients of timedrun's model against transformers' in fp32, on a batch of four sequences."""
    set_backends(tf32=False, cudnn_benchmark=False)
    lengths = sampled_lengths(4, architecture.positions, 1)
    padded, unpadded = (sampled_batch(lengths, architecture, one, 1).to(block.device) for one in (True, False))
    theirs = build_reference(architecture, 1, "eager").to(block.device)
    loss = theirs(padded) / padded.global_masked
    loss.backward()
    gradients = {name: one.grad for name, one in theirs.model.named_parameters() if name not in ALIASES}
    expected = float(loss.detach())
    for name, speed in OWN.items():
        model = build_bert(architecture, 1, speed).to(block.device)
        loss = model(unpadded) / unpadded.global_masked
        loss.backward()
        parameters = {key: one for key, one in model.named_parameters() if "key.bias" not in key}  # exactly zero
        wanted = to_own(gradients, {key: tuple(one.shape) for key, one in parameters.items()}, architecture)
        apart = max(float((one.grad - wanted[key]).norm() / wanted[key].norm()) for key, one in parameters.items())
        own_loss = float(loss.detach())
        difference = abs(own_loss - expected) / expected
        found = {"loss": own_loss, "transformers": expected, "loss apart": difference, "gradients apart": apart}
        block.check(f"{name}: fp32 as transformers", difference <= LOSS and apart <= GRADIENT, found)


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
    compare_with_transformers(block, architecture)
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
    block.check("first losses agree", losses_apart(rows) <= FIRST_LOSSES, losses_apart(rows))
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
