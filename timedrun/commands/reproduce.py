"""`timedrun reproduce`: recompute scores from logs and compare them with claims, or repeat the runs."""

import argparse
from dataclasses import replace
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import ResultPaths, existing, read_json, require_log, write_json
from judging.pages.score_table import NOTICE
from judging.scoring.recorded_run import RecordedRun
from timedrun.evidence.submission.reproduction import reproduce as recomputed
from timedrun.evidence.submission.reproduction.claims import read_claims
from timedrun.evidence.submission.reproduction.repetition import Outcome, repeat, repeat_config
from timedrun.racing.child_run import run_child
from timedrun.racing.command_run import repeat_command
from timedrun.racing.race_file import COMMANDS
from timedrun.runner.process.launch_env import Launch


def reproduce(arguments: argparse.Namespace) -> ExitCode:
    """Recompute the scores or, with --run, repeat the runs; exit code 0 if everything is reproduced."""
    path = Path(arguments.path)
    if not path.exists():
        raise UsageError(f"{path} does not exist; name a package, a results folder or a round of submissions.")
    require_log(path)
    if arguments.run:
        return run_again(arguments, path)
    if arguments.commands:
        raise UsageError("--commands applies to repeated runs only; add --run.")
    claims = read_claims(arguments.claims) if arguments.claims else None
    reproduction = recomputed.reproduce(path, claims)
    if not reproduction.figures or not existing(path):
        raise UsageError(f"{path} holds no result_*.txt that is an MLPerf log, so there is nothing to reproduce.")
    told = {"path": str(path), **reproduction.as_dict()}
    stdio.report(reproduction.text, told, as_json=arguments.json)
    return ExitCode.OK if reproduction.reproduced else ExitCode.ERROR


def run_again(arguments: argparse.Namespace, path: Path) -> ExitCode:
    """Repeat the results at `path` and compare each set with its repetition."""
    if arguments.claims:
        raise UsageError("--claims applies to recomputed scores only; leave out --claims or --run.")
    if arguments.commands and not arguments.commands.is_dir():
        raise UsageError(f"--commands {arguments.commands} is no folder; nothing was run.")

    def one(run: RecordedRun, paths: ResultPaths, label: str) -> Outcome:
        settings = read_json(run.config)
        if settings["benchmark"] == COMMANDS:
            return repeat_command(run, paths, arguments.commands, label)

        def start(ranks: int, threads: int) -> tuple[int, str, int]:
            launch = replace(Launch.of(vars(arguments)), ranks=ranks, threads=threads)
            of = settings["benchmark"], str(run.config), paths, settings.get("seed", 1)
            return run_child(launch.run_command(*of), label, keep_output=True)

        return repeat_config(run, paths, path, arguments.threads, start)

    most, threads = arguments.runs, arguments.threads
    folder, verdicts, interrupted = repeat(path, arguments.results, one, most=most, threads=threads)
    reproduced, sets = all(verdict.reproduced for verdict in verdicts), [verdict.as_dict() for verdict in verdicts]
    told = {"reproduced": reproduced, "verified": False, "notice": NOTICE, "sets": sets}
    write_json(folder / "reproduced.json", told)
    where = f"logs        {folder}/<set>/result_N.txt, files of run N in run_N/; verdicts are in reproduced.json"
    contradicted = any(verdict.contradicted for verdict in verdicts)
    fine = sum(verdict.reproduced for verdict in verdicts)
    answer = "true" if reproduced else "false" if contradicted else "not shown"
    last = f"{answer}: {fine} of {len(verdicts)} sets have the quality of before in every run."
    text = "\n".join(["\n\n".join(verdict.text for verdict in verdicts), NOTICE, "", where, last])
    stdio.report(text, {"path": str(path), "results": str(folder), **told}, as_json=arguments.json)
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if reproduced else ExitCode.ERROR
