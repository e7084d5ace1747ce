"""Child process in which MLCommons' tools run: one job after another, with one line of JSON as the answer to each.

It is started as a file and imports nothing of mlevents; `python child.py JOBS FIRST` runs JOBS from FIRST on.
"""

import contextlib
import importlib
import io
import json
import logging
import math
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Final

LINES_KEPT: Final = 200  # of a tool's stdout


class _Recorder(logging.Handler):
    """Log handler that keeps records as [level, message]."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[list[str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.entries.append([record.levelname, record.getMessage()])

    def warn(self, message: Warning | str, category: type[Warning], *place: object, **rest: object) -> None:
        """Replace warnings.showwarning: keep the tools' own warnings, drop those of libraries."""
        if category is UserWarning:
            self.entries.append(["WARNING", str(message)])


def _scored(folder: str, ruleset: str) -> list[str]:
    """Return the benchmarks of the one system in `folder` that the result summarizer computes a score of."""
    from mlperf_logging.benchmark_meta import get_allowed_benchmarks

    summarizer: Any = importlib.import_module("mlperf_logging.result_summarizer.result_summarizer")
    rows = summarizer.summarize_results(folder, "training", ruleset)[0].to_dict("records")
    benchmarks = get_allowed_benchmarks("training", ruleset)
    return [name for row in rows for name in benchmarks if row[name] is not None and math.isfinite(row[name])]


def _sub(pattern: str, by: str, text: str, *rest: Any, sub: Callable[..., str] = re.sub, **named: Any) -> str:
    """Replace re.sub, which takes most of the tools' time: they cut each line by this pattern, and it is tried from
    every character."""
    cut = pattern == ".*:::MLLOG " and by in text
    return text[text.rindex(by) :] if cut else sub(pattern, by, text, *rest, **named)


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job. `raised` is the last line of a traceback; `missing` means that it was a failed import or memory."""
    values: dict[str, Any] = {"exit": 0, "raised": None, "missing": False, "scored": []}
    recorder, printed, errors = _Recorder(), io.StringIO(), io.StringIO()
    root = logging.getLogger()
    root.handlers[:] = [recorder]
    root.setLevel(logging.INFO)
    sys.argv = [f"mlperf_logging.{job['tool']}", *job["arguments"]]
    warnings.showwarning = recorder.warn
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            if job["tool"] == "result_summarizer":
                values["scored"] = _scored(*job["arguments"])
            else:
                runpy.run_module(f"mlperf_logging.{job['tool']}", run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        values["exit"] = stop.code
    except Exception as error:
        values["missing"] = isinstance(error, ImportError | MemoryError)
        values["raised"] = traceback.format_exception_only(error)[-1].strip()
    if checker := sys.modules.get("mlperf_logging.compliance_checker.mlp_compliance"):
        checker.enqueued_configs.clear()  # its queue of rule files is global, and an aborted check leaves some in it
    values["log"] = recorder.entries
    values["printed"] = printed.getvalue().splitlines()[-LINES_KEPT:]
    values["errors"] = errors.getvalue().splitlines()[-1:]
    return values


def main() -> None:
    """Write the answers to the original stdout; what the tools print goes to stderr."""
    with open(sys.argv[1], encoding="utf-8") as file:
        request = json.load(file)
    first = int(sys.argv[2])
    answers = os.dup(1)
    os.dup2(2, 1)
    if request["source"] is not None:
        sys.path.insert(0, request["source"])
    re.sub = _sub  # type: ignore[assignment]
    # libyaml reads rule files: Python's parser would take most of the time of a check
    with contextlib.suppress(ImportError, AttributeError):  # told by the tools themselves; PyYAML without libyaml
        checker: Any = importlib.import_module("mlperf_logging.compliance_checker.mlp_compliance")
        checker.yaml.BaseLoader = checker.yaml.CBaseLoader
    for job in request["jobs"][first:]:
        line = json.dumps(answer(job)).encode() + b"\n"
        while line:
            line = line[os.write(answers, line) :]


if __name__ == "__main__":
    main()
