"""`timedrun score`: time to train of result sets, or the forecast of the check of reference convergence."""

import argparse
import sys
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import compressed, existing, require_log, require_ruleset
from judging.pages import score_table
from judging.scoring import score as scores


def score(arguments: argparse.Namespace) -> ExitCode:
    """Print the score of every set; exit code 1 if a set has none, or, with --target-test, fails the test."""
    if arguments.forecast:
        if arguments.price is not None or arguments.target_test is not None:
            raise UsageError("--forecast takes --batch-size and --ruleset; leave out --price and --target-test.")
        from timedrun.commands.forecast import forecast  # with numpy

        return forecast(arguments)
    if arguments.batch_size is not None:
        raise UsageError("--batch-size is of --forecast; add it, or leave both out.")
    require_ruleset(arguments.ruleset)
    paths = [Path(name) for name in arguments.paths]
    for path in paths:
        if not existing(path):
            raise UsageError(f"no result_*.txt found in {path}{compressed(path)}.")
        require_log(path)
    results = scores.score(
        paths,
        ruleset=arguments.ruleset,
        show_progress=not arguments.json,
        price=arguments.price,
        tested_target=arguments.target_test,
    )
    if arguments.json:
        print(score_table.as_json(results), end="")
    else:
        width = stdio.terminal_columns(sys.stdout)
        stdio.show(score_table.table(results, detailed=arguments.verbose, width=width).removesuffix("\n"))
    if arguments.target_test is not None:
        passed = all(score.target_test is not None and score.target_test.passed for score in results)
    else:
        passed = all(times.score_minutes is not None for times in results)
    return ExitCode.OK if passed else ExitCode.ERROR
