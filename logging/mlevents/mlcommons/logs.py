"""Run MLCommons' compliance checker on many logs in one child process."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mlevents.mlcommons.messages import rule_file_values, too_long, unsafe
from mlevents.mlcommons.process import Job, Workplace
from mlevents.mlcommons.verdict import OfficialVerdict, RepairError, Tool, repaired, with_own_round
from mlevents.rounds.ruleset import Repair, UpstreamDefect

LOG_SECONDS: Final = 120.0


def check_log(path: Path, ruleset: str) -> OfficialVerdict:
    """Return the compliance checker's verdict on one log; see `check_logs`."""
    return check_logs([path], ruleset)[0]


def check_logs(paths: Sequence[Path], ruleset: str) -> list[OfficialVerdict]:
    """Return the compliance checker's verdict on each log, from one child process on a copy of all of them.

    Record numbers in its messages are converted to line numbers of the file. A log that cannot be copied, that takes
    longer than `LOG_SECONDS`, or that ends the child process is "not run"; the others are checked nevertheless.
    """
    tool = Tool("compliance_checker", ruleset)
    if tool.unable:
        return [tool.verdict("not run", tool.unable)] * len(paths)
    try:
        return _check(paths, tool)
    except OSError as error:
        return [tool.no_copy(error)] * len(paths)


def _check(paths: Sequence[Path], tool: Tool) -> list[OfficialVerdict]:
    """Return the verdicts by today's rule files, then by repaired ones if needed."""
    verdicts: dict[int, OfficialVerdict] = {}
    logs: dict[int, Path] = {}
    concerned: dict[tuple[Repair, ...], tuple[tuple[UpstreamDefect, ...], list[int]]] = {}
    with Workplace() as place:
        for number, path in enumerate(paths):
            folder = place.copy / str(number)  # names may repeat
            folder.mkdir()
            try:
                log = shutil.copyfile(path, folder / path.name)
            except OSError as error:  # a pipe too, which is not opened
                verdicts[number] = tool.verdict("not run", f"{path.name}: {error.strerror or error}")
                continue
            if reason := too_long(log, path.name):
                verdicts[number] = tool.verdict("not run", reason)
                continue
            names = rule_file_values(log)
            if refused := list(unsafe(names, path.name)):
                verdicts[number] = tool.verdict("fail", *refused)
                continue
            logs[number] = log
            if defects := tool.defects(names):
                concerned.setdefault(tuple(defect.repair for defect in defects), (defects, []))[1].append(number)
        verdicts |= _ask(place, logs, tool)
        for defects, numbers in concerned.values():
            failed = {number: logs[number] for number in numbers if verdicts[number].verdict == "fail"}
            if not failed:
                continue
            own: Mapping[int, OfficialVerdict | RepairError]
            try:
                own = _ask(place, failed, tool, repaired(place, defects))
            except RepairError as error:
                own = dict.fromkeys(failed, error)
            verdicts |= {number: with_own_round(verdicts[number], own[number], defects) for number in failed}
    return [verdicts[number] for number in range(len(paths))]


def _ask(
    place: Workplace, logs: Mapping[int, Path], tool: Tool, source: Path | None = None
) -> dict[int, OfficialVerdict]:
    """Return the verdicts on the copies `logs`, by the rule files in `source` or the installed ones."""
    options = ("--usage", "training", "--ruleset", tool.ruleset, "--log_output", os.devnull)
    answers = place.run([Job(tool.name, (*options, str(log)), LOG_SECONDS) for log in logs.values()], source)
    return {
        number: tool.judged(answer, place, log.parent)
        for (number, log), answer in zip(logs.items(), answers, strict=True)
    }
