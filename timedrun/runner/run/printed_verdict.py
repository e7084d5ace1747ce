"""Print the verdict on a run that has ended."""

import json
import sys
from typing import Any

from judging.ground import ledger, stdio
from judging.ground.errors import ExitCode
from judging.ground.result_files import ResultPaths
from judging.scoring.clocks import start_up
from mlevents.machine_load import disturbances
from mlevents.summary import summarize
from mlevents.terminal_escape import printable
from timedrun.runner.process.verdict import Verdict


def verdict_values(paths: ResultPaths, verdict: Verdict) -> dict[str, Any]:
    code, words, run = verdict
    announced = ledger.find(paths.folder)
    return {
        "result": str(paths.log),
        "status": run.status if run else None,
        "minutes": run.minutes if run and code == ExitCode.OK else None,
        "quality": run.final_quality if run else None,
        "demonstration": run.is_demonstration if run else None,
        "disturbances": disturbances(run) if run else (),
        "ledger_head": ledger.parse(announced.read_bytes()).head if announced else None,
        "verified": False,
        "exit_code": int(code),
        "words": words,
    }


def print_verdict(paths: ResultPaths, verdict: Verdict, *, as_json: bool) -> ExitCode:
    """Print the verdict on a run and return its exit code."""
    values, announced = verdict_values(paths, verdict), ledger.find(paths.folder)
    if as_json:
        stdio.stage("")
        stdio.write(json.dumps(values, indent=2) + "\n", sys.stdout)
    else:
        lines = [verdict.words, *(f"disturbed: {load}" for load in values["disturbances"])]
        lines += [f"ledger {announced}, head {values['ledger_head'][:12]}"] if announced else []
        lines += [printable(text) for text in ([start_up([summarize(verdict.run)])] if verdict.run else []) if text]
        for line in map(printable, lines):
            stdio.message(line) if verdict.code else stdio.show(stdio.fitted(line, 4))
        if verdict.code in (ExitCode.OK, ExitCode.TARGET_NOT_REACHED):
            stdio.next_command("report" if verdict.code else "check", paths.folder)
    return verdict.code
