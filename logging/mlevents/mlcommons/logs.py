"""Run MLCommons' compliance checker on many logs in one child process."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mlevents.mlcommons.messages import rule_file_values, too_long, unsafe
from mlevents.mlcommons.process import Job, Workplace
from mlevents.mlcommons.repair import RepairError, concerning, repaired
from mlevents.mlcommons.verdict import (
    OfficialVerdict,
    judged,
    no_copy,
    not_repaired,
    unable,
    with_own_round,
    without_run,
)
from mlevents.rounds.ruleset import Repair, UpstreamDefect

LOG_SECONDS: Final = 120.0
COPIED_BYTES: Final = 32 << 20  # of logs, at a time
TOOL: Final = "compliance_checker"


def check_log(path: Path, ruleset: str) -> OfficialVerdict:
    """Return the compliance checker's verdict on one log; see `check_logs`."""
    return check_logs([path], ruleset)[0]


def check_logs(paths: Sequence[Path], ruleset: str) -> list[OfficialVerdict]:
    """Return the compliance checker's verdict on each log, from one child process per `COPIED_BYTES` of logs.

    Record numbers in its messages are converted to line numbers of the file. A log that cannot be read, that takes
    longer than `LOG_SECONDS`, or that ends the child process is "not run"; the others are checked nevertheless.
    """
    if reason := unable(ruleset):
        return [without_run("not run", TOOL, ruleset, [reason]) for _ in paths]
    verdicts: list[OfficialVerdict] = []
    for part in _parts(paths):
        try:
            verdicts += _check_part(part, ruleset)
        except OSError as error:
            verdicts += [without_run("not run", TOOL, ruleset, [no_copy(error)])] * len(part)
    return verdicts


def _parts(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Split `paths` into parts of at most `COPIED_BYTES`, or of one larger log."""
    part: list[Path] = []
    held = 0
    for path in paths:
        size = path.stat().st_size if path.is_file() else 0
        if part and held + size > COPIED_BYTES:
            yield part
            part, held = [], 0
        part.append(path)
        held += size
    if part:
        yield part


def _check_part(paths: Sequence[Path], ruleset: str) -> list[OfficialVerdict]:
    """Return the verdicts on logs copied together: by today's rule files, then by repaired ones if needed."""
    verdicts: dict[int, OfficialVerdict] = {}
    logs: dict[int, Path] = {}
    concerned: dict[tuple[Repair, ...], tuple[tuple[UpstreamDefect, ...], list[int]]] = {}
    with Workplace() as place:
        for number, path in enumerate(paths):
            folder = place.copy / str(number)  # names may repeat
            folder.mkdir()
            if reason := _unreadable(path) or too_long(path, path.name):
                verdicts[number] = without_run("not run", TOOL, ruleset, [reason])
                continue
            log = shutil.copyfile(path, folder / path.name)
            names = rule_file_values(log)
            if refused := list(unsafe(names, path.name)):
                verdicts[number] = without_run("fail", TOOL, ruleset, refused)
                continue
            logs[number] = log
            if defects := concerning(ruleset, names):
                concerned.setdefault(tuple(defect.repair for defect in defects), (defects, []))[1].append(number)
        verdicts |= _ask(place, logs, ruleset)
        for defects, numbers in concerned.values():
            failed = {number: logs[number] for number in numbers if verdicts[number].verdict == "fail"}
            if not failed:
                continue
            try:
                own = _ask(place, failed, ruleset, repaired(place, defects))
            except RepairError as error:
                verdicts |= {number: not_repaired(verdicts[number], defects, error) for number in failed}
            else:
                verdicts |= {number: with_own_round(verdicts[number], own[number], defects) for number in failed}
    return [verdicts[number] for number in range(len(paths))]


def _ask(
    place: Workplace, logs: Mapping[int, Path], ruleset: str, source: Path | None = None
) -> dict[int, OfficialVerdict]:
    """Return the verdicts on the copies `logs`, by the rule files in `source` or the installed ones."""
    options = ("--usage", "training", "--ruleset", ruleset, "--log_output", os.devnull)
    answers = place.run([Job(TOOL, (*options, str(log)), LOG_SECONDS) for log in logs.values()], source)
    return {
        number: judged(TOOL, ruleset, answer, place, log.parent)
        for (number, log), answer in zip(logs.items(), answers, strict=True)
    }


def _unreadable(path: Path) -> str | None:
    """Return why `path` cannot be copied, or None. Reading a pipe or a device might block forever."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return f"{path.name} is not a regular file"
        path.open("rb").close()
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return None
