"""`timedrun audit`: the whole of a published round in one report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from timedrun import stdio
from timedrun.errors import ExitCode, UsageError
from timedrun.storage.atomic_file import replace_text
from timedrun.storage.result_files import require_ruleset
from timedrun.submission.auditing import audit as audits
from timedrun.submission.auditing.audit_page import as_page
from timedrun.submission.auditing.audit_report import as_json, as_text
from timedrun.submission.auditing.published_scores import read_published


def audit(arguments: argparse.Namespace) -> ExitCode:
    """Print the audit of a round; exit code 0 whatever it finds, since others' faults are not its failure."""
    require_ruleset(arguments.ruleset)
    root = Path(arguments.round)
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder; pass the folder of a round, with SUBMITTER/results in it.")
    found = audits.audit(root, read_published(arguments.published), arguments.ruleset)
    if arguments.html:
        replace_text(arguments.html, as_page(found))
    if arguments.json:
        print(as_json(found), end="")
    else:
        stdio.show(as_text(found, stdio.terminal_columns(sys.stdout)).removesuffix("\n"))
    return ExitCode.OK
