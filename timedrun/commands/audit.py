"""Audit of a published round, the whole of it in one report: `timedrun check ROUND --audit`."""

import argparse
import sys
from pathlib import Path

from judging.checking import audit as audits
from judging.checking.audit_report import as_json, as_text
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import require_ruleset


def audit(arguments: argparse.Namespace) -> ExitCode:
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
