"""Time of the timed loop over a bare loop with the same step, on a GPU (benchmarks/loop_overhead.py).

Usage: python -m benchmarks.gpu.overhead --out results/gpu/DATE-GPU [--config digits_baseline] [--rounds 15] [--tiny]

The loops train the same model on the same batches in turns; the ratio is of training seconds, evaluation left out.
Needs the packages of pyproject.toml's `dependencies` and scikit-learn; carry those that a machine without a network
lacks (see bert_ladder). The energy of timed runs is in the tables of races.
"""

from __future__ import annotations

from benchmarks import loop_overhead
from benchmarks.gpu.block import Block, parser


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--config", default="digits_baseline")
    options.add_argument("--rounds", type=int, default=15, help="of both loops (default 15)")
    options.add_argument("--epochs", type=int, default=24, help="of each loop (default 24)")
    arguments = options.parse_args()
    block = Block("overhead", arguments)
    rounds, epochs = (2, 1) if block.tiny else (arguments.rounds, arguments.epochs)
    given = ["--config", arguments.config, "--device", block.device.type]
    given += ["--rounds", str(rounds), "--epochs", str(epochs)]
    found = loop_overhead.main(given)
    block.values["loop_overhead"] = found
    low, high = found["quartiles"]
    row = [arguments.config, f"{found['median_ratio']:.4f}", f"{low:.4f} - {high:.4f}"]
    block.show("timed over bare loop", ["config", "median", "quartiles"], [row])
    block.finish()


if __name__ == "__main__":
    main()
