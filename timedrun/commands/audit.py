"""`timedrun audit`: the whole of a published round in one report."""

import argparse
import sys
from pathlib import Path

from judging.checking import audit as audits
from judging.checking.audit_report import as_json, as_page, as_text
from judging.checking.published_scores import read_published
from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import require_ruleset, write_output


def audit(arguments: argparse.Namespace) -> ExitCode:
    """Print the audit of a round; exit code 1 if a log that no score drops, a set or a package has an error."""
    require_ruleset(arguments.ruleset)
    root = Path(arguments.round)
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder; pass the folder of a round, with SUBMITTER/results in it.")
    audit = audits.audit(root, read_published(arguments.published), arguments.ruleset)
    if arguments.html:
        write_output(arguments.html, as_page(audit))
    if arguments.json:
        print(as_json(audit), end="")
    else:
        stdio.show(as_text(audit, stdio.terminal_columns(sys.stdout)).removesuffix("\n"))
    return ExitCode.ERROR if any(result.failed for result in audit.results) else ExitCode.OK
