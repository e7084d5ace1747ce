"""`timedrun referee`: judge a training script by somebody else."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path

from mlevents.terminal_escape import printable
from timedrun import stdio
from timedrun.errors import ExitCode, UsageError
from timedrun.referee import contents
from timedrun.referee.referee import Examination, Referee
from timedrun.referee.series import Series
from timedrun.referee.session import Limits
from timedrun.referee.verdict import Verdict


def referee(arguments: argparse.Namespace) -> ExitCode:
    """Print the verdict; exit code 0 if accepted, 1 if rejected, 3 if only the target was not reached."""
    for path in (arguments.submission, arguments.train, arguments.validation):
        if not path.exists():
            raise UsageError(f"{path} does not exist. Nothing was run.")
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    settings = Examination(
        arguments.vocabulary,
        arguments.context,
        device=arguments.device,
        threads=arguments.threads,
        limits=Limits(
            prepare_seconds=arguments.prepare_seconds,
            budget_seconds=arguments.budget_seconds,
            answer_seconds=arguments.answer_seconds,
            late_seconds=arguments.late_seconds,
            processes=arguments.processes,
            memory_bytes=int(arguments.memory * 2**30),
        ),
        rows=arguments.rows,
        tolerance=arguments.tolerance or (1e-3 if arguments.device == "cpu" else 2e-2),
        margin=arguments.margin,
        target=arguments.target if arguments.runs == 1 else None,  # of several runs, the mean must reach it
        fixed=tuple(arguments.fixed),
        seed=seed,
    )
    files = contents.read(arguments.submission, settings.limits.code_bytes)
    stdio.stage("timedrun referee: starting the sandbox")
    with (
        tempfile.TemporaryDirectory(prefix="timedrun_referee_", dir=arguments.scratch) as folder,
        Referee(
            settings, arguments.train, arguments.validation, Path(folder), isolated=not arguments.no_sandbox
        ) as judge,
    ):
        verdicts: list[Verdict] = []
        while len(verdicts) < arguments.runs and not (verdicts and verdicts[-1].failed):
            of = f" (run {len(verdicts) + 1} of {arguments.runs})" if arguments.runs > 1 else ""
            stdio.stage(f"timedrun referee: training twice, then asking{of}")
            verdicts.append(judge.examine(files))
    verdict = verdicts[0] if arguments.runs == 1 else Series(verdicts, arguments.target)
    if arguments.json:
        print(json.dumps({**verdict.as_json(), "seed": seed}, indent=2))
    else:
        stdio.show("\n".join(map(printable, verdict.lines(stdio.terminal_columns(sys.stdout)))))
    return verdict.exit_code
