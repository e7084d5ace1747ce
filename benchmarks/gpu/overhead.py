"""Time of the timed loop over a bare loop with the same step, on a GPU (benchmarks/loop_overhead.py), and its power.

Usage: python -m benchmarks.gpu.overhead --out results/gpu/DATE-GPU [--config digits_baseline] [--rounds 15] [--tiny]

The loops train the same model on the same batches in turns; the ratio is of training seconds, evaluation left out. The
energy is NVML's counter (extra `gpu`) over the whole script; without pynvml it is unknown. Needs the packages of
pyproject.toml's `dependencies` and scikit-learn; carry those that a machine without a network lacks (see bert_ladder).
"""

from __future__ import annotations

from benchmarks import loop_overhead
from benchmarks.gpu.block import Block, parser


def joules() -> float | None:
    """Return the energy that the first GPU has used since its driver was loaded; None: NVML does not say."""
    try:
        import pynvml as nvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.nvmlDeviceGetHandleByIndex(0))) / 1e3
    except nvml.NVMLError:
        return None


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--config", default="digits_baseline")
    options.add_argument("--rounds", type=int, default=15, help="of both loops (default 15)")
    options.add_argument("--epochs", type=int, default=24, help="of each loop (default 24)")
    arguments = options.parse_args()
    block = Block("overhead", arguments)
    rounds, epochs = (2, 1) if block.tiny else (arguments.rounds, arguments.epochs)
    before = joules()
    given = ["--config", arguments.config, "--device", block.device.type]
    given += ["--rounds", str(rounds), "--epochs", str(epochs)]
    found = loop_overhead.main(given)
    after = joules()
    used = None if before is None or after is None else after - before
    block.values |= {"loop_overhead": found, "joules": used}
    low, high = found["quartiles"]
    row = [arguments.config, f"{found['median_ratio']:.4f}", f"{low:.4f} - {high:.4f}"]
    row += [f"{used:,.0f}" if used else "unknown"]
    block.show("timed over bare loop", ["config", "median", "quartiles", "J, whole script"], [row])
    block.finish()


if __name__ == "__main__":
    main()
