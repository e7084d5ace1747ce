"""Race scripts whose speed-up, misses, divergences and slow lines are planted, until they are decided, and count the
verdicts that are wrong and the intervals that cover what was planted.

Usage: python benchmarks/planted_races.py [--races 10] [--seconds 0.2] [--runs 12] [--json FILE]
"""

import argparse
import json
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

SPEED_UPS: Final = (1.0, 1.05, 2.0)
PLANS: Final = {
    "all reach": (0.0, 0.0, 0.0, 0.0),
    "misses": (0.15, 0.15, 0.0, 0.0),
    "second misses more": (0.0, 0.4, 0.0, 0.0),
    "nan": (0.0, 0.0, 0.1, 0.0),
    "slow lines": (0.0, 0.0, 0.0, 0.2),
}
"""Shares of runs: of the first and of the second side that miss, in twice the time; of both that end in nan, in the
same time; and of both whose last line comes in two parts, in a quarter more."""
SCRIPT: Final = """\
import random, sys, time
seconds, miss, nan, slow, number = map(float, sys.argv[1:])
draw = random.Random(number)
kind, seconds = draw.random(), seconds * draw.lognormvariate(0, 0.03)
if kind < miss:
    seconds *= 2
print("start", flush=True)
time.sleep(seconds)
value = "0.5" if kind < miss else "nan" if kind < miss + nan else "0.95"
if kind > 1 - slow:
    print("accuracy", end=" 0.9", flush=True)
    time.sleep(seconds / 4)
    value = "5"
    print(value, flush=True)
else:
    print("accuracy", value, flush=True)
"""


def raced(folder: Path, speed_up: float, plan: tuple[float, ...], options: argparse.Namespace, number: int) -> Any:
    """Return race.json of a race of the script against itself, `speed_up` times as fast."""
    first, second, nan, slow = plan
    script = folder / "script.py"
    script.write_text(SCRIPT)
    sides = [
        f"{shlex.quote(sys.executable)} -S {script} {seconds} {miss} {nan} {slow} {place}{{seed}}"
        for place, (seconds, miss) in enumerate(((options.seconds, first), (options.seconds / speed_up, second)), 1)
    ]
    words = ["--quality", r"accuracy (\S+)", "--target", "0.9", "--start", "start", "--until-decided", "--json"]
    words += ["--runs", str(options.runs), "--first-seed", str(1000 * number + 1), "--results", str(folder / "race")]
    command = [sys.executable, "-m", "timedrun", "race", "command", *sides, *words]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def counted(races: list[Any], speed_up: float, plan: tuple[float, ...]) -> dict[str, Any]:
    """Return the counts over races of one kind: of verdicts, of wrong ones, and of intervals that cover the truth."""
    first, second, nan, slow = plan
    spent = [1 + miss + slow / 4 for miss in (first, second)]  # of a run, misses and slow lines included
    expected = speed_up * spent[0] / spent[1] * (1 - second - nan) / (1 - first - nan)
    ratios = [ratio for race in races for ratio in race["ratios"].values()]
    bounds = [(ratio["low"], ratio["high"]) for ratio in ratios if ratio["low"] is not None]
    of_all = [(of["low"], of["high"]) for ratio in ratios if (of := ratio["expected"]) and of["low"] is not None]
    shown = [ratio["verdict"] for ratio in ratios if ratio["verdict"].startswith(("faster", "slower"))]
    return {
        "races": len(races),
        "without a ratio": len(races) - len(ratios),
        "verdicts": len(shown),
        "false verdicts": sum(not verdict.startswith("faster") or speed_up == 1 for verdict in shown),
        "bare faster though it misses more": sum(
            ratio["verdict"] == "faster" and ratio["attempts"][1]["reached"] < ratio["attempts"][1]["runs"]
            for ratio in ratios
        ),
        "ratio covered": f"{sum(low <= speed_up <= high for low, high in bounds)} of {len(bounds)}",
        "expected covered": f"{sum(low <= expected <= high for low, high in of_all)} of {len(of_all)}",
        "pairs": sum(ratio["runs_slow"] for ratio in ratios) / max(1, len(ratios)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=10, help="of each speed-up and plan")
    parser.add_argument("--seconds", type=float, default=0.2, help="of a run of the first side")
    parser.add_argument("--runs", type=int, default=12, help="most pairs of a race")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for (name, plan), speed_up in product(PLANS.items(), SPEED_UPS):
        races = []
        for number in range(options.races):
            with TemporaryDirectory() as folder:
                races.append(raced(Path(folder), speed_up, plan, options, number))
        found[f"{speed_up}x, {name}"] = counts = counted(races, speed_up, plan)
        print(f"{speed_up}x, {name}:", ", ".join(f"{what} {count}" for what, count in counts.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
