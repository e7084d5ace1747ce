"""`timedrun referee`: judge a training script by somebody else."""

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

from judging.comparison.speedup_ratio import LEAST_PAIRS
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from mlevents.terminal_escape import printable
from referee import contents
from referee.referee import Examination, Referee, ended_by_signals
from referee.series import Retiming, Series, examine_in_turns
from referee.session import Limits
from referee.verdict import Verdict
from timedrun.commands.referee_limits import read_limits


def referee(arguments: argparse.Namespace) -> ExitCode:
    """Print the verdict; exit code 0 if accepted, 1 if rejected, 3 if only the target was not reached, 4 if undecided,
    5 if somebody has to read the script.

    An interruption ends it after the report of the examinations that have finished.
    """
    submissions = [path for path in (arguments.submission, arguments.against) if path is not None]
    for path in (*submissions, arguments.train, arguments.validation):
        if not path.exists():
            raise UsageError(f"{path} does not exist. Nothing was run.")
    seed, runs = secrets.randbits(128) if arguments.seed is None else arguments.seed, arguments.runs
    rare = read_limits(arguments.limits)
    own: dict[str, Any] = {
        name: rare[name] for name in ("prepare_seconds", "answer_seconds", "late_seconds", "processes") if name in rare
    }
    if arguments.memory is not None:
        own["memory_bytes"] = int(arguments.memory * 2**30)
    settings = Examination(
        arguments.vocabulary or 0,
        arguments.context or 0,
        arguments.classes,
        device=arguments.device,
        threads=arguments.threads,
        ranks=arguments.ranks,
        limits=Limits(budget_seconds=arguments.budget_seconds, **own),
        rows=rare.get("rows", 10_000 if arguments.classes else 512),
        tolerance=rare.get("tolerance", 1e-3 if arguments.device == "cpu" else 2e-2),
        margin=rare.get("margin", 0.01 if arguments.classes else 0.05),
        prefix=arguments.prefix,
        target=arguments.target if runs == 1 else None,  # of several runs, the mean must reach it
        fixed=tuple(arguments.fixed),
        seed=seed,
    )
    if arguments.against is not None and arguments.target is None:
        raise UsageError("--against needs --target: the faster of two is the record only if it is as good.")
    if arguments.against is not None and runs < LEAST_PAIRS:
        raise UsageError(f"--against needs --runs {LEAST_PAIRS} or more, for the interval of a ratio. Nothing was run.")
    files = [contents.read(path, settings.limits.code_bytes) for path in submissions]
    stdio.stage("timedrun referee: starting the sandbox")
    verdicts: list[list[Verdict]] = [[] for _ in files]

    def report() -> ExitCode:
        series = [Series(of_one, arguments.target, runs) for of_one in verdicts]
        verdict = Retiming(*series) if len(series) > 1 else series[0] if runs > 1 else verdicts[0][0]
        lines = map(printable, verdict.lines(stdio.terminal_columns(sys.stdout)))
        stdio.report("\n".join(lines), {**verdict.as_json(), "seed": seed}, as_json=arguments.json)
        return verdict.exit_code

    scratch = Path(rare["scratch"]) if "scratch" in rare else None
    place, isolated = (arguments.train, arguments.validation, scratch), not arguments.no_sandbox
    with ended_by_signals(), Referee(settings, *place, isolated=isolated) as judge:
        try:
            examine_in_turns(judge.examine, files, verdicts, runs)
        except BaseException:
            if any(verdicts):
                report()
            raise
    return report()
