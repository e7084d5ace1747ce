"""`timedrun export`: logged values as CSV or for TensorBoard."""

import argparse
import json
from pathlib import Path

from judging.ground.errors import ExitCode
from judging.pages import export as exports


def export(arguments: argparse.Namespace) -> ExitCode:
    kind = next(kind for kind in exports.WRITERS if getattr(arguments, kind))
    out = getattr(arguments, kind)
    runs = exports.runs_at([Path(name) for name in arguments.paths])
    count = exports.WRITERS[kind](runs, out)
    print(json.dumps({"exported": count, "to": str(out)}) if arguments.json else f"Exported {count} runs to {out}.")
    return ExitCode.OK
