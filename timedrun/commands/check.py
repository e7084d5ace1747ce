"""`timedrun check`: the strict verdict and MLCommons' own on logs, result sets, packages and rounds."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

from judging.checking.check_report import apart, result_lines, sentence, summary_lines
from judging.checking.verdicts import check_paths
from judging.ground import stdio
from judging.ground.errors import ExitCode
from timedrun.commands.audit import audit

LISTED: Final = 15
"""Results whose findings are listed one by one; those of more, or of several sets, are grouped."""


def check(arguments: argparse.Namespace) -> ExitCode:
    """Print verdicts and findings; exit code 1 if anything failed or a requested checker could not run."""
    if arguments.audit:
        return audit(arguments)
    paths = [Path(path) for path in arguments.paths]
    results = check_paths(paths, arguments.ruleset, run_official=arguments.official, show_progress=not arguments.json)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        stdio.show(stdio.verdict(sentence(results)))
        many = len(results) > LISTED or sum(result.kind == "set" for result in results) > 1
        root = Path(os.path.commonpath([os.path.abspath(path) for path in arguments.paths]))
        if many or arguments.quiet:
            if lines := summary_lines(results, root, quiet=arguments.quiet):
                stdio.show("\n".join(lines))
        else:
            of_set = next((Path(result.path).absolute() for result in results if result.kind == "set"), root)
            own, shared = apart(results)
            for result in own:
                near = Path(result.path).absolute() if result.kind == "package" else of_set
                stdio.show("\n".join(result_lines(result, near)))
            if shared or len(results) > 2:
                stdio.show("\n".join([*shared, *summary_lines(results, root, quiet=True)]))
        if results and not arguments.quiet and not any(result.failed for result in results):
            packaged = any(result.kind == "package" for result in results)
            stdio.next_command("reproduce" if packaged and len(paths) == 1 else "score", *paths)
    not_run = arguments.official and any(result.checker and result.official == "not run" for result in results)
    failed = not_run or any(result.failed for result in results)
    if not arguments.json:
        stdio.show("FAIL" if failed else "PASS")
    return ExitCode.ERROR if failed else ExitCode.OK
