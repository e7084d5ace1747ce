"""Compare our check of reference convergence, and scores by it, with MLCommons' tools on every set of published rounds.

Usage: python benchmarks/reference_convergence.py ROUND [ROUND ...]
ROUND is a folder of submitters named after its round, such as v5.1. RCP_Checker, which writes scaling.json, and the
scoring function of result_summarizer run in this process on copies of the logs without published factors. Factors are
also compared with the published ones.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from mlperf_logging.rcp_checker import rcp_checker
from mlperf_logging.result_summarizer.result_summarizer import _compute_strong_score_standalone

from judging.scoring.score import score
from mlevents import keys
from mlevents.checks.convergence import Convergence, convergence, scaling_factor
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
            str(folder), "training", round_name, False, False, rcp_pass="pruned_rcps", set_scaling=True
        )
    except KeyError:  # its defects: benchmarks that it no longer lists, and mixed batch sizes
        return "not judged", 1.0
    if passed:
        return ("scaled", float(factor)) if factor > 1 else ("as slow", 1.0)
    if message.startswith("Missing"):
        return "missing point", 1.0
    return ("too fast", 1.0) if message.startswith("RCP") else ("not judged", 1.0)


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
            found = convergence(summaries, ruleset(name))
            with TemporaryDirectory(prefix="set-") as scratch:
                copy = Path(scratch).resolve() / folder.name
                shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("scaling.json", "power"))
                own = ours(found)
                scored = score([copy], ruleset=name)[0]
                own_score = scored.score_minutes and scored.score_minutes * (scored.unapplied_factor or 1.0)
                official = theirs(copy, name)  # writes scaling.json
                with contextlib.redirect_stdout(io.StringIO()):
                    official_score = _compute_strong_score_standalone(
                        folder.name, folder.parent.name, False, str(copy), "training", name
                    )[0]
            place = folder.relative_to(path)
            missing, equal = None in (own_score, official_score), own_score == official_score
            if missing:
                counts["score missing on a side"] += 1
            elif closed:
                kind = "scaled" if own[1] > 1 else "unscaled"
                counts[f"{kind} score {'of the same digits' if equal else 'differs'}"] += 1
            if missing or (closed and not equal):
                different.append(f"{place}: score {own_score}, result_summarizer {official_score}")
            counts[f"{'closed' if closed else 'open'}: {own[0]}"] += 1
            counts["the same verdict and digits"] += own == official
            if own != official:
                different.append(f"{place}: ours {own}, RCP_Checker {official}")
            given = scaling_factor(folder) if closed else None
            if given is not None:
                same = found is not None and found.matches(given)
                published["equal" if same else "other"] += 1
                if not same:
                    different.append(f"{place}: ours {own}, published factor {given}")
            elif closed and own[1] > 1:
                published["none"] += 1
                different.append(f"{place}: ours {own}, published unscaled")
        print(path.name, dict(sorted(counts.items())), "published factors:", dict(published))
        print("\n".join(f"  {line}" for line in different), flush=True)


if __name__ == "__main__":
    main()
