"""Measure what a race of commands costs its command: the same script alone and read by the harness, interleaved.

Usage: python benchmarks/command_overhead.py [--rounds 12] [--lines 400] [--json FILE]

The script hashes a fixed amount of memory between its lines, which are evaluations and say when they were printed.
Reported are the ratio of its wall times, the processor time of the harness for a line and for a run without any, most
of it before the script starts, and the delay from printing a line to its time in the log.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from judging.ground.result_files import ResultPaths
from mlevents import keys, record
from timedrun.race.command_run import OUTPUT, CommandRun
from timedrun.race.command_side import CommandSide

SCRIPT: Final = """
import hashlib, sys, time
block, start = bytes(1 << 20), time.perf_counter()
for line in range(int(sys.argv[1])):
    for _ in range(24): hashlib.sha256(block).digest()
    print(f"line {line} quality 0.5 at {time.time():.6f}", flush=True)
print(f"took {time.perf_counter() - start:.6f}", flush=True)
"""


def took(output: str) -> float:
    """Return the seconds that the script reports."""
    return float(re.findall(r"^took ([\d.]+)", output, flags=re.MULTILINE)[0])


def alone(script: Path, lines: int) -> dict[str, float]:
    """Run the script with its output in a pipe that is only emptied."""
    done = subprocess.run([sys.executable, script, str(lines)], capture_output=True, text=True, check=True)
    return {"alone_seconds": took(done.stdout)}


def read(script: Path, lines: int, folder: Path) -> dict[str, float]:
    """Run the script as a side of a race."""
    side = CommandSide(
        name="overhead",
        command=f"{sys.executable} {script} {lines}",
        quality=r"line (?P<step>\d+) quality (?P<quality>[\d.]+)",
        target=1.0,
    )
    paths = ResultPaths(folder, 0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    CommandRun(side, paths, runs=1, label="overhead", directory=folder.parent).run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    output = (paths.side / OUTPUT).read_text()
    printed = [float(at) for at in re.findall(r"at ([\d.]+)", output)]
    logged = [event.time_ms / 1e3 for event in record.read(paths.log).all(keys.EVAL_ACCURACY)]
    delays = [late - at for late, at in zip(logged, printed, strict=True)]
    return {
        "read_seconds": took(output),
        "harness_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "median_delay_ms": 1e3 * statistics.median(delays),
        "longest_delay_ms": 1e3 * max(delays),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--lines", type=int, default=400)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    rows: list[dict[str, float]] = []
    with TemporaryDirectory() as folder:
        (script := Path(folder) / "script.py").write_text(SCRIPT)
        for number in range(arguments.rounds):
            folders = [Path(folder) / f"lines_{number}", Path(folder) / f"line_{number}"]
            bare = alone(script, arguments.lines) if number % 2 else {}
            timed = read(script, arguments.lines, folders[0])
            bare = bare or alone(script, arguments.lines)
            least = read(script, 1, folders[1])["harness_seconds"]
            cost = 1e3 * (timed["harness_seconds"] - least) / (arguments.lines - 1)
            rows.append(bare | timed | {"harness_alone_seconds": least, "line_ms": cost})
    ratios = sorted(row["read_seconds"] / row["alone_seconds"] for row in rows)
    quartiles = statistics.quantiles(ratios, n=4)
    result = {
        "lines": arguments.lines,
        "rounds": rows,
        "median_ratio": statistics.median(ratios),
        "quartiles": [quartiles[0], quartiles[2]],
        "median_line_ms": statistics.median(row["line_ms"] for row in rows),
        "median_harness_alone_seconds": statistics.median(row["harness_alone_seconds"] for row in rows),
        "median_delay_ms": statistics.median(row["median_delay_ms"] for row in rows),
        "longest_delay_ms": max(row["longest_delay_ms"] for row in rows),
    }
    print(
        f"{arguments.lines} lines in {statistics.median(row['alone_seconds'] for row in rows):.2f} s; read / alone:"
        f" median {result['median_ratio']:.4f}, quartiles {quartiles[0]:.4f} to {quartiles[2]:.4f}; processor time of"
        f" the harness: {result['median_line_ms']:.2f} ms an evaluation, {result['median_harness_alone_seconds']:.2f} s"
        f" a run; delay of a line:"
        f" median {result['median_delay_ms']:.2f} ms, longest {result['longest_delay_ms']:.2f} ms"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
