"""`timedrun check`: the strict verdict and MLCommons' own on logs, result sets, packages and rounds."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from judging.checking import audit as audits
from judging.checking.audit_report import as_json, as_text
from judging.checking.check_report import apart, result_lines, sentence, summary_lines
from judging.checking.verdicts import check_paths
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import require_ruleset

LISTED: Final = 15
"""Results whose findings are listed one by one; those of more, or of several sets, are grouped."""


def check(arguments: argparse.Namespace) -> ExitCode:
    """Print verdicts and findings; exit code 1 if anything failed or a requested checker could not run."""
    if arguments.audit:
        return audit_round(arguments)
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


def audit_round(arguments: argparse.Namespace) -> ExitCode:
    """Print the audit of a round; exit code 1 if a log that no score drops, a set or a package has an error."""
    require_ruleset(arguments.ruleset)
    if len(arguments.paths) > 1 or not (root := Path(arguments.paths[0])).is_dir():
        raise UsageError("--audit takes the folder of one round, with SUBMITTER/results in it.")
    if arguments.quiet or not arguments.official:
        raise UsageError("--audit reports on a whole round; leave out --quiet and --no-official.")
    audit = audits.audit(root, arguments.ruleset)
    if arguments.json:
        print(as_json(audit), end="")
    else:
        stdio.show(as_text(audit, stdio.terminal_columns(sys.stdout)).removesuffix("\n"))
    return ExitCode.ERROR if any(result.failed for result in audit.results) else ExitCode.OK
