"""`timedrun referee`: judge a training script by somebody else."""

import argparse
import contextlib
import json
import secrets
import signal
import sys
from collections.abc import Iterator

from judging.comparison.speedup_ratio import LEAST_PAIRS
from judging.ground import stdio
from judging.ground.errors import ExitCode, TimedrunError, UsageError
from mlevents.terminal_escape import printable
from referee import contents
from referee.referee import Examination, Referee
from referee.retiming import Retiming
from referee.series import Series
from referee.session import Limits
from referee.verdict import Verdict

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Ended(TimedrunError):
    """Signal that ends an examination."""


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Ended on the first signal of `ENDING`, so that processes and folders are removed, and ignore later ones; a
    signal that is ignored from the start, as nohup(1) has it, stays so."""

    def end(number: int, _: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        error = Ended(f"ended by {signal.Signals(number).name}; the submission's processes and files were removed")
        error.exit_code = ExitCode(128 + number)
        raise error

    before = {number: now for number in ENDING if (now := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def referee(arguments: argparse.Namespace) -> ExitCode:
    """Print the verdict; exit code 0 if accepted, 1 if rejected, 3 if only the target was not reached, 4 if undecided.

    An interruption ends it after the report of the examinations that have finished.
    """
    submissions = [path for path in (arguments.submission, arguments.against) if path is not None]
    for path in (*submissions, arguments.train, arguments.validation):
        if not path.exists():
            raise UsageError(f"{path} does not exist. Nothing was run.")
    of_text = [arguments.vocabulary, arguments.context, arguments.prefix, arguments.fixed]
    if any(of_text) if arguments.classes else not all(of_text[:2]):
        text = "name --classes, of images, or --vocabulary and --context, of text, to which --prefix and --fixed belong"
        raise UsageError(f"{text}. Nothing was run.")
    if arguments.prefix and arguments.prefix < arguments.context:
        text = f"--prefix {arguments.prefix}: no whole row of --context {arguments.context}"
        raise UsageError(f"{text}; name as many tokens or more. Nothing was run.")
    if arguments.against is not None and arguments.target is None:
        raise UsageError("--against needs --target: the faster of two is the record only if it is as good.")
    if arguments.against is not None and arguments.runs < LEAST_PAIRS:
        raise UsageError(f"--against needs --runs {LEAST_PAIRS} or more, for the interval of a ratio. Nothing was run.")
    seed = secrets.randbits(128) if arguments.seed is None else arguments.seed
    settings = Examination(
        arguments.vocabulary or 0,
        arguments.context or 0,
        arguments.classes,
        device=arguments.device,
        threads=arguments.threads,
        ranks=arguments.ranks,
        limits=Limits(
            prepare_seconds=arguments.prepare_seconds,
            budget_seconds=arguments.budget_seconds,
            answer_seconds=arguments.answer_seconds,
            late_seconds=arguments.late_seconds,
            processes=arguments.processes,
            memory_bytes=int(arguments.memory * 2**30),
        ),
        rows=arguments.rows or (10_000 if arguments.classes else 512),
        tolerance=arguments.tolerance or (1e-3 if arguments.device == "cpu" else 2e-2),
        margin=arguments.margin or (0.01 if arguments.classes else 0.05),
        prefix=arguments.prefix,
        target=arguments.target if arguments.runs == 1 else None,  # of several runs, the mean must reach it
        fixed=tuple(arguments.fixed),
        seed=seed,
    )
    files = [contents.read(path, settings.limits.code_bytes) for path in submissions]
    stdio.stage("timedrun referee: starting the sandbox")
    verdicts: list[list[Verdict]] = [[] for _ in files]

    def report() -> ExitCode:
        series = [Series(of_one, arguments.target, arguments.runs) for of_one in verdicts]
        verdict = Retiming(*series) if len(series) > 1 else series[0] if arguments.runs > 1 else verdicts[0][0]
        if arguments.json:
            print(json.dumps({**verdict.as_json(), "seed": seed}, indent=2))
        else:
            stdio.show("\n".join(map(printable, verdict.lines(stdio.terminal_columns(sys.stdout)))))
        return verdict.exit_code

    with (
        ended_by_signals(),
        Referee(
            settings, arguments.train, arguments.validation, arguments.scratch, isolated=not arguments.no_sandbox
        ) as judge,
    ):
        turns = [(number, place) for number in range(arguments.runs) for place in range(len(files))]
        for turn, (number, place) in enumerate(turns, 1):
            of = f" (examination {turn} of {len(turns)})" if len(turns) > 1 else ""
            stdio.stage(f"timedrun referee: training twice, then asking{of}")
            each = place if number % 2 == 0 else -1 - place  # who goes first changes from round to round
            try:
                verdicts[each].append(judge.examine(files[each]))
            except BaseException:
                if any(verdicts):
                    report()
                raise
            if verdicts[each][-1].exit_code is ExitCode.ERROR:
                break
    return report()
