"""`timedrun check`: the strict verdict and MLCommons' own on logs, result sets and packages."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

from judging.checking.check_report import apart, result_lines, summary_lines
from judging.checking.verdicts import check_paths
from judging.ground import stdio
from judging.ground.errors import ExitCode

LISTED: Final = 15
"""Results whose findings are listed one by one; those of more, or of several sets, are grouped."""


def check(arguments: argparse.Namespace) -> ExitCode:
    """Print verdicts and findings; exit code 1 if anything failed or a requested checker could not run."""
    paths = [Path(path) for path in arguments.paths]
    results = check_paths(paths, arguments.ruleset, run_official=arguments.official, show_progress=not arguments.json)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        many = len(results) > LISTED or sum(result.kind == "set" for result in results) > 1
        root = Path(os.path.commonpath([os.path.abspath(path) for path in arguments.paths]))
        if many or arguments.by or arguments.quiet:
            stdio.show("\n".join(summary_lines(results, root, arguments.by or "rule", quiet=arguments.quiet)))
        else:
            of_set = next((Path(result.path).absolute() for result in results if result.kind == "set"), root)
            own, shared = apart(results)
            for result in own:
                near = Path(result.path).absolute() if result.kind == "package" else of_set
                stdio.show("\n".join(result_lines(result, near)))
            if shared or len(results) > 2:
                stdio.show("\n".join([*shared, "", *summary_lines(results, root, "rule", quiet=True)]))
        if results and not arguments.quiet and not any(result.failed for result in results):
            packaged = any(result.kind == "package" for result in results)
            stdio.next_command("reproduce" if packaged and len(paths) == 1 else "score", *paths)
    not_run = arguments.official and any(result.checker and result.official == "not run" for result in results)
    return ExitCode.ERROR if not_run or any(result.failed for result in results) else ExitCode.OK
