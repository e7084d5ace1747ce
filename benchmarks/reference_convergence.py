"""Compare our check of reference convergence with MLCommons' RCP_Checker on every set of published rounds.

Usage: python benchmarks/reference_convergence.py ROUND [ROUND ...]
ROUND is a folder of submitters named after its round, such as v5.1. RCP_Checker runs in this process and writes
nothing. Factors are also compared with the scaling.json that the submitters published.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections import Counter
from pathlib import Path

from mlperf_logging.rcp_checker import rcp_checker

from mlevents import keys
from mlevents.checks.convergence import Convergence, convergence
from mlevents.record import read, result_files
from mlevents.rounds import round_of_path, ruleset
from mlevents.summary import summarize

Verdict = tuple[str, float]  # outcome, factor of the score


def ours(found: Convergence | None) -> Verdict:
    return ("not judged", 1.0) if found is None else (found.outcome, found.factor)


def theirs(folder: Path, round_name: str) -> Verdict:
    """Return RCP_Checker's verdict in our words."""
    try:
        passed, message, factor = rcp_checker.check_directory(
            str(folder), "training", round_name, False, False, rcp_pass="pruned_rcps"
        )
    except (KeyError, FileNotFoundError) as error:
        return f"not judged ({type(error).__name__})", 1.0
    if passed:
        return ("scaled", float(factor)) if factor > 1 else ("as slow", 1.0)
    if message.startswith("Missing"):
        return "missing point", 1.0
    return ("too fast", 1.0) if message.startswith("RCP") else (f"not judged ({message})", 1.0)


def agree(first: Verdict, second: Verdict) -> bool:
    return first[0] == second[0].split(" (")[0] and math.isclose(first[1], second[1], rel_tol=1e-12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=Path, nargs="+")
    logging.disable(logging.CRITICAL)
    for path in parser.parse_args().rounds:
        name = round_of_path(path.resolve())
        assert name is not None, f"{path} is not named after a round"
        counts: Counter[str] = Counter()
        published: Counter[str] = Counter()
        different = []
        for folder in sorted({file.parent for file in result_files(path)}):
            summaries = [summarize(read(file)) for file in result_files(folder)]
            closed = {one.division for one in summaries if one.events} == {keys.CLOSED}
            found = ours(convergence(summaries, ruleset(name)))
            official = theirs(folder, name)
            place = folder.relative_to(path)
            counts[f"{'closed' if closed else 'open'}: {found[0]}"] += 1
            counts["equal to the last digit"] += found == official
            if not agree(found, official):
                different.append(f"{place}: ours {found}, RCP_Checker {official}")
            if closed:
                file = folder / "scaling.json"
                factor = json.loads(file.read_text())["scaling_factor"] if file.is_file() else 1.0
                same = math.isclose(factor, found[1], rel_tol=1e-9)
                published["equal" if same else "other"] += file.is_file() or found[1] != 1
                if not same:
                    different.append(f"{place}: ours {found}, published factor {factor}")
        print(path.name, dict(sorted(counts.items())), "scaling.json", dict(published))
        print("\n".join(f"  {line}" for line in different), flush=True)


if __name__ == "__main__":
    main()
