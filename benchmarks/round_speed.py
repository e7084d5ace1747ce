"""Check and score a published round here and with MLCommons' tools: time ratio, memory, and every score.

Usage: python benchmarks/round_speed.py ROUND [--rounds 3] [--by-submitter] [--json FILE]
ROUND is a folder of submitters named after its round, such as v5.1.
Ours: `timedrun check --no-official` and `timedrun score` on the whole tree, or once a submitter. MLCommons':
package_checker and result_summarizer for each submitter, as scripts/verify_for_v2.1_training.sh of mlcommons/logging
calls them (its third tool, repo_checker, reads no log). Both are measured as processes on the same files, interleaved.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from mlevents.mlcommons import checker_version
from mlevents.rounds import MLPERF_RULESETS, round_of_path

Name = tuple[str, str, str]  # submitter, system, benchmark
Scores = dict[tuple[Name, int], float | None]  # minutes, by name and rank: systems of one submitter may share a name

TIMEDRUN: Final = (sys.executable, "-c", "import sys; from timedrun.cli import main; sys.exit(main())")


@dataclass
class Spent:
    """Wall seconds and largest resident size (bytes) of processes that ran one after the other."""

    seconds: float = 0.0
    peak_bytes: int = 0

    def run(self, command: Sequence[str], folder: Path, output: Path) -> int:
        """Run `command` in `folder`, its standard output into `output`; returns its exit status."""
        began = time.perf_counter()
        with open(output, "wb") as file:
            process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds += time.perf_counter() - began
        self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
        return process.returncode


def ours(folders: Sequence[Path], scratch: Path, ruleset: str) -> tuple[dict[str, Spent], Scores]:
    """Check and score each of `folders` (the whole round, or every submitter) with timedrun."""
    spent = {"check": Spent(), "score": Spent()}
    scores: list[tuple[Name, float | None]] = []
    for folder in folders:
        for verb, options in (("check", ["--no-official"]), ("score", [])):
            command = [*TIMEDRUN, verb, str(folder), *options, "--json", "--ruleset", ruleset]
            status = spent[verb].run(command, scratch, scratch / f"{verb}.json")
            assert status in (0, 1), f"timedrun {verb} ended with {status}"
        tree = folder.parent if (folder / "results").is_dir() else folder
        for row in json.loads((scratch / "score.json").read_text()):
            # MLCommons' table names a submitter and a system as the description does.
            file = tree / row["submitter"] / "systems" / f"{row['system']}.json"
            description = json.loads(file.read_text())
            name = (description["submitter"], description["system_name"], row["benchmark"])
            scores.append((name, row["score_minutes"]))
    return spent, ranked(scores)


def ranked(scores: Sequence[tuple[Name, float | None]]) -> Scores:
    """Number the scores of each name by rising time, missing ones last."""
    numbers: Counter[Name] = Counter()
    found: Scores = {}
    for name, minutes in sorted(scores, key=lambda one: math.inf if one[1] is None else one[1]):
        found[name, numbers[name]] = minutes
        numbers[name] += 1
    return found


def theirs(submitters: Sequence[Path], scratch: Path, ruleset: str) -> tuple[dict[str, Spent], Scores]:
    """Check and summarize every submitter with MLCommons' tools."""
    spent = {"package_checker": Spent(), "result_summarizer": Spent()}
    published = {file: file.read_bytes() for one in submitters for file in one.glob("results/*/*/scaling.json")}
    scores: list[tuple[Name, float | None]] = []
    for submitter in submitters:
        table = scratch / f"{submitter.name}.csv"
        detailed = scratch / f"{submitter.name}_detailed.csv"
        for old in (table, detailed):
            old.unlink(missing_ok=True)
        for tool, options in (
            ("package_checker", ["--log_output", str(scratch / "package_checker.log")]),
            ("result_summarizer", ["--csv", str(table)]),
        ):
            command = [sys.executable, "-m", f"mlperf_logging.{tool}", str(submitter), "training", ruleset, *options]
            spent[tool].run(command, scratch, scratch / f"{tool}.out")  # nonzero for what it rejects
        if not table.is_file():
            continue
        with open(table, newline="") as rows:
            for row in csv.DictReader(rows):
                for benchmark in MLPERF_RULESETS[ruleset].benchmarks.keys() & row.keys():
                    if row[benchmark]:
                        scores.append(((row["submitter"], row["system"], benchmark), float(row[benchmark])))
        for file in submitter.glob("results/*/*/scaling.json"):
            if file in published:
                file.write_bytes(published[file])
            else:
                file.unlink()  # the package checker wrote it; the next repeat starts from the same files
    return spent, ranked(scores)


def differences(own: Scores, official: Scores) -> list[str]:
    """Return the scores in which the two sides differ, with the cause if the numbers show it."""
    found = []
    for key in sorted(own.keys() | official.keys()):
        ours, theirs = own.get(key), official.get(key)
        if ours == theirs:
            continue
        if ours is None:
            why = "no valid set by the rules; MLCommons' summarizer counts no files and, if open, requires no target"
        elif theirs is None:
            why = "MLCommons gives none"
        elif math.isclose(ours, theirs, rel_tol=1e-12):
            why = "the same sum, rounded in another order"
        elif theirs < ours:
            why = "theirs counts a run that did not converge by its time; here it counts as the slowest"
        else:
            why = f"theirs is scaled by {theirs / ours:.6f}, for which no scaling.json was published"
        found.append(f"{'/'.join(key[0])}: ours {ours}, theirs {theirs}: {why}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("round", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--by-submitter", action="store_true", help="call timedrun once a submitter, too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="round-") as name:
        scratch, tree = Path(name).resolve(), Path(name).resolve() / "round"
        shutil.copytree(arguments.round, tree)  # the package checker writes into it
        ruleset = round_of_path(arguments.round.resolve())
        assert ruleset is not None, f"{arguments.round} is not named after a round"
        submitters = sorted(tree.iterdir())
        logs = list(tree.rglob("result_*.txt"))
        size = sum(log.stat().st_size for log in logs)
        print(f"{len(submitters)} submitters, {len(logs)} logs, {size / 1e6:.1f} MB; {checker_version()}")
        rows: list[dict[str, dict[str, Spent]]] = []
        own: Scores = {}
        official: Scores = {}
        for number in range(arguments.rounds):
            spent: dict[str, dict[str, Spent]] = {}
            for side in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
                if side == "ours":
                    spent[side], own = ours(submitters if arguments.by_submitter else [tree], scratch, ruleset)
                else:
                    spent[side], official = theirs(submitters, scratch, ruleset)
            rows.append(spent)
            print(f"  {number + 1}: {times('ours', spent['ours'])}; {times('theirs', spent['theirs'])}", flush=True)
    # Not before: it brings torch, and a process started from one of that size would be measured with it.
    from timedrun.provenance.system import provenance

    result = summary(rows, own, official)
    result |= {
        "command": ["python", *(Path(word).name if "/" in word else word for word in sys.argv)],
        "versions": {"python": platform.python_version(), "checker": checker_version()},
        "source": provenance(Path(__file__).resolve().parent.parent),
        "megabytes": size / 1e6,
        "logs": len(logs),
        "submitters": len(submitters),
    }
    low, high = result["ratio_range"]
    print(f"MLCommons' / ours: median {result['ratio']:.1f}, range {low:.1f} to {high:.1f} of {len(rows)}")
    peaks = result["peak_megabytes"]
    print(f"largest process: ours {peaks['ours']:.0f} MB, MLCommons' {peaks['theirs']:.0f} MB")
    print(f"scores: {result['same_scores']} the same digits, {result['no_scores']} given by neither, and these differ:")
    print("\n".join(f"  {line}" for line in result["differences"]) or "  none")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def times(side: str, spent: dict[str, Spent]) -> str:
    parts = ", ".join(f"{name} {part.seconds:.2f}" for name, part in spent.items())
    return f"{side} {seconds(spent):.2f} s ({parts})"


def seconds(spent: dict[str, Spent]) -> float:
    return sum(part.seconds for part in spent.values())


def summary(rows: Sequence[dict[str, dict[str, Spent]]], own: Scores, official: Scores) -> dict[str, Any]:
    """Return ratios, peaks, the comparison of the scores and every measurement."""
    ratios = [seconds(row["theirs"]) / seconds(row["ours"]) for row in rows]
    sides = {side: [row[side] for row in rows] for side in ("ours", "theirs")}
    return {
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "seconds": {side: statistics.median(map(seconds, spent)) for side, spent in sides.items()},
        "peak_megabytes": {
            side: max(part.peak_bytes for row in spent for part in row.values()) / 1e6 for side, spent in sides.items()
        },
        "same_scores": sum(own[key] is not None and own[key] == official.get(key) for key in own),
        "no_scores": sum(own.get(key) is None and official.get(key) is None for key in own.keys() | official.keys()),
        "differences": differences(own, official),
        "rounds": [
            {side: {name: vars(part) for name, part in spent.items()} for side, spent in row.items()} for row in rows
        ],
    }


if __name__ == "__main__":
    main()
