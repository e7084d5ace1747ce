"""Number formats that this machine's CPU computes in hardware, measured by a small matrix product."""

import sys
import time
from functools import cache
from typing import Final

import torch

PRODUCT: Final = 192
"""Rows and columns of the measured product: 14 million operations, 4 to 20 ms where they are emulated."""
TRIALS: Final = 4
EMULATED: Final = 4.0
"""A format is emulated if its product takes this many times as long as that of fp32. Instructions take less time than
fp32's, oneDNN's conversion to fp32 on AVX-512 up to twice as long, and emulation 10 to 90 times."""
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@cache
def slowdown(precision: str) -> float:
    """Return the time of a product in `precision` over that of one in fp32, on one thread of this CPU.

    Takes 15 to 50 ms in the first call of a process and nothing in the next. The fastest of some interleaved trials
    counts, so other load changes little.

    Examples:
        >>> slowdown("bf16") > 0
        True
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for a busy core would be most of so small a product
    try:
        factors = [torch.ones(PRODUCT, PRODUCT, dtype=dtype) for dtype in (DTYPES[precision], torch.float32)]
        least = [float("inf"), float("inf")]
        for trial in range(TRIALS):
            for at, factor in enumerate(factors):
                start = time.perf_counter()
                factor @ factor
                if trial:  # the first one chooses and loads the kernel
                    least[at] = min(least[at], time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return least[0] / least[1]


def emulated(precision: str, device: str = "auto") -> bool:
    """Return True if a run on `device`, as configs name it, is on this CPU and `precision` is emulated there, many
    times slower than fp32.

    Examples:
        >>> emulated("fp32", device="cpu")
        False
    """
    on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    return on_cpu and precision != "fp32" and slowdown(precision) >= EMULATED


def described(precision: str) -> str:
    """Return whether this CPU computes `precision` in hardware, with the measured ratio.

    Examples:
        >>> described("fp32").startswith("fp32 in hardware")
        True
    """
    how = "emulated" if emulated(precision, "cpu") else "in hardware"
    return f"{precision} {how}, {slowdown(precision):.1f} times fp32's time"


def main() -> None:
    """Print the precision given on the command line, or fp32, with a word on standard error, if it is emulated here."""
    (precision,) = sys.argv[1:]
    if emulated(precision):
        print(f"this CPU has no instructions for {precision}; all configs run in fp32", file=sys.stderr)
        precision = "fp32"
    print(precision)


if __name__ == "__main__":
    main()
