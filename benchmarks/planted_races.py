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


def raced(folder: Path, speed_up: float, plan: tuple[float, ...], options: argparse.Namespace, number: int) -> Any:
    """Return race.json of a race of the script against itself, `speed_up` times as fast."""
    (folder / "script.py").write_text(SCRIPT)
    sides = [
        f"{sys.executable} -S {folder}/script.py {options.seconds / speed} {miss} {plan[2]} {plan[3]} {place}{{seed}}"
        for place, (speed, miss) in enumerate(zip((1, speed_up), plan[:2], strict=True), 1)
    ]
    words = ["--quality", r"accuracy (\S+)", "--target", "0.9", "--start", "start", "--until-decided", "--json"]
    words += ["--runs", str(options.runs), "--first-seed", str(1000 * number + 1), "--results", f"{folder}/race"]
    command = [sys.executable, "-m", "timedrun", "race", "command", *sides, *words]
    return json.loads(subprocess.run(command, capture_output=True, check=False).stdout)


def counts(races: list[Any], speed_up: float, plan: tuple[float, ...]) -> str:
    """Return the counts over races of one kind; the last is of the ratio of expected times to a success."""
    first, second, nan, slow = plan
    expected = speed_up * (1 + first + slow / 4) / (1 + second + slow / 4) * (1 - second - nan) / (1 - first - nan)
    ratios = [ratio for race in races for ratio in race["ratios"].values()]
    shown = [ratio["verdict"] for ratio in ratios if ratio["verdict"].startswith(("faster", "slower"))]
    false = sum(not verdict.startswith("faster") or speed_up == 1 for verdict in shown)
    bounds = [(each["low"], each["high"]) for each in ratios if each["low"] is not None]
    of_all = [
        (each["low"], each["high"]) for ratio in ratios if (each := ratio["expected"]) and each["low"] is not None
    ]
    covered = [
        f"{sum(low <= true <= high for low, high in b)} of {len(b)}"
        for b, true in ((bounds, speed_up), (of_all, expected))
    ]
    return f"{len(shown)} of {len(races)} races show a difference, {false} a false one; covered {' and '.join(covered)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=10, help="of each speed-up and plan")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a run of the first side")
    parser.add_argument("--runs", type=int, default=12, help="most pairs of a race")
    options = parser.parse_args()
    for (name, plan), speed_up in product(PLANS.items(), (1.0, 1.05, 2.0)):
        with TemporaryDirectory() as folder:
            races = []
            for number in range(options.races):
                (place := Path(folder) / str(number)).mkdir()
                races.append(raced(place, speed_up, plan, options, number))
        print(f"{speed_up}x, {name}: {counts(races, speed_up, plan)}", flush=True)


if __name__ == "__main__":
    main()
