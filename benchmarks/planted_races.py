"""Race scripts whose speed-up, misses, divergences and slow lines are planted, until they are decided, and count wrong
verdicts and the intervals that cover what was planted.

Usage: python benchmarks/planted_races.py [--races 10] [--seconds 0.2] [--runs 12]
"""

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Shares of runs: of either side that miss, in twice the time; of both that end in nan; of both whose last line comes in
# two parts, in a quarter more time.
PLANS = {
    "all reach": (0, 0, 0, 0),
    "misses": (0.15, 0.15, 0, 0),
    "second misses more": (0, 0.4, 0, 0),
    "nan": (0, 0, 0.1, 0),
    "slow lines": (0, 0, 0, 0.2),
}
SCRIPT = """import random, sys, time
seconds, miss, nan, slow, number = map(float, sys.argv[1:])
draw = random.Random(number)
kind, seconds = draw.random(), seconds * draw.lognormvariate(0, 0.03)
print("start", flush=True)
time.sleep(seconds * (2 if kind < miss else 1))
value = "0.5" if kind < miss else "nan" if kind < miss + nan else "0.95"
print("accuracy", value[:-1], end="", flush=True)
time.sleep(seconds / 4 if kind > 1 - slow else 0)
print(value[-1], flush=True)
"""


def raced(speed_up: float, plan: tuple[float, ...], options: argparse.Namespace, number: int) -> list[Any]:
    """Return the ratio of a race of the script against itself, `speed_up` times as fast, if it has one."""
    with TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        sides = [
            f"{sys.executable} -S {script} {options.seconds / speed} {miss} {plan[2]} {plan[3]} {place}{{seed}}"
            for place, (speed, miss) in enumerate(zip((1, speed_up), plan[:2], strict=True), 1)
        ]
        words = ["--quality", r"accuracy (\S+)", "--target", "0.9", "--start", "start", "--until-decided", "--json"]
        words += ["--runs", str(options.runs), "--first-seed", str(1000 * number + 1), "--results", f"{folder}/race"]
        command = [sys.executable, "-m", "timedrun", "race", "command", *sides, *words]
        return [*json.loads(subprocess.run(command, capture_output=True, check=False).stdout)["ratios"].values()]


def covered(intervals: list[Any], truth: float) -> str:
    known = [each for each in intervals if each and each["low"] is not None]
    return f"{sum(each['low'] <= truth <= each['high'] for each in known)} of {len(known)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=10, help="of each speed-up and plan")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a run of the first side")
    parser.add_argument("--runs", type=int, default=12, help="most pairs of a race")
    options = parser.parse_args()
    for (name, plan), speed_up in product(PLANS.items(), (1.0, 1.05, 2.0)):
        ratios = [ratio for number in range(options.races) for ratio in raced(speed_up, plan, options, number)]
        shown = [ratio["verdict"] for ratio in ratios if ratio["verdict"].startswith(("faster", "slower"))]
        false = sum(not verdict.startswith("faster") or speed_up == 1 for verdict in shown)
        first, second, nan, slow = plan
        spent = (1 + first + slow / 4) / (1 + second + slow / 4)
        truth = speed_up * spent * (1 - second - nan) / (1 - first - nan)
        print(
            f"{speed_up}x, {name}: {len(shown)} of {options.races} races show a difference, {false} falsely; covered:",
            f"ratio {covered([ratio for ratio in ratios if ratio['runs_slow'] > 2], speed_up)},",
            f"ratio of expected times {covered([ratio['expected'] for ratio in ratios], truth)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
