"""Run MLCommons' compliance checker on many logs in one child process, and its package checker and result summarizer on
a copy of an organization's folder."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mlevents.mlcommons.messages import rule_file_values, too_long, unsafe
from mlevents.mlcommons.process import Answer, Job, Workplace
from mlevents.mlcommons.verdict import OfficialVerdict, RepairError, Tool, repaired, with_own_round
from mlevents.rounds.ruleset import Repair, UpstreamDefect

LOG_SECONDS: Final = 120.0
PARTS: Final = ("systems", "results", "benchmarks")  # all that the package checker looks at
PACKAGE_SECONDS: Final = 600.0


def check_log(path: Path, ruleset: str) -> OfficialVerdict:
    """Return the compliance checker's verdict on one log; see `check_logs`."""
    return check_logs([path], ruleset)[0]


def check_logs(paths: Sequence[Path], ruleset: str) -> list[OfficialVerdict]:
    """Return the compliance checker's verdict on each log, from one child process on a copy of all of them.

    Record numbers in its messages are converted to line numbers of the file. A log that cannot be copied, that takes
    longer than `LOG_SECONDS`, or that ends the child process is "not run"; the others are checked nevertheless."""
    tool = Tool("compliance_checker", ruleset)
    if tool.unable:
        return [tool.verdict("not run", tool.unable)] * len(paths)
    try:
        return _check_logs(paths, tool)
    except OSError as error:
        return [tool.no_copy(error)] * len(paths)


def _check_logs(paths: Sequence[Path], tool: Tool) -> list[OfficialVerdict]:
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
        verdicts |= _ask_of_logs(place, logs, tool)
        for defects, numbers in concerned.values():
            failed = {number: logs[number] for number in numbers if verdicts[number].verdict == "fail"}
            if not failed:
                continue
            own: Mapping[int, OfficialVerdict | RepairError]
            try:
                own = _ask_of_logs(place, failed, tool, repaired(place, defects))
            except RepairError as error:
                own = dict.fromkeys(failed, error)
            verdicts |= {number: with_own_round(verdicts[number], own[number], defects) for number in failed}
    return [verdicts[number] for number in range(len(paths))]


def _ask_of_logs(
    place: Workplace, logs: Mapping[int, Path], tool: Tool, source: Path | None = None
) -> dict[int, OfficialVerdict]:
    """Return the verdicts on the copies `logs`, by the rule files in `source` or the installed ones."""
    options = ("--usage", "training", "--ruleset", tool.ruleset, "--log_output", os.devnull)
    answers = place.run([Job(tool.name, (*options, str(log)), LOG_SECONDS) for log in logs.values()], source)
    answered = zip(logs.items(), answers, strict=True)
    return {number: tool.judged(answer, place, log.parent) for (number, log), answer in answered}


def check_package(folder: Path, ruleset: str) -> OfficialVerdict:
    """Return the package checker's verdict on an organization's folder, and what the result summarizer does not score.

    `folder` holds systems/ and results/; nothing is written to it. Links out of it, and a log that would make the
    checker execute a file, fail it without a run. Raises FileNotFoundError if `folder` is not a folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; a package is a folder with systems/ and results/")
    tool = Tool("package_checker", ruleset)
    if tool.unable:
        return tool.verdict("not run", tool.unable)
    try:
        return _check_package(folder, tool)
    except shutil.Error as error:  # lists (source, target, reason) of every file
        return tool.verdict("not run", f"a file could not be copied: {error.args[0][0][2]}")
    except OSError as error:
        return tool.no_copy(error)


def _check_package(folder: Path, tool: Tool) -> OfficialVerdict:
    with Workplace() as place:
        refused = _copy(folder, place.copy)
        logs = [path for path in sorted(place.copy.glob("results/*/*/result_*.txt")) if path.is_file()]
        names = {str(path.relative_to(place.copy)): rule_file_values(path) for path in logs}
        refused += [complaint for path, log in names.items() for complaint in unsafe(log, path)]
        if refused:
            return tool.verdict("fail", *map(place.plain, refused))
        if long := [reason for path in logs if (reason := too_long(path, str(path)))]:
            return tool.verdict("not run", *map(place.plain, long))
        defects = list({defect.repair: defect for log in names.values() for defect in tool.defects(log)}.values())
        again = None
        if defects:  # a second copy, since the tools write into it
            again = shutil.copytree(place.copy, place.new_folder("again"), symlinks=True, dirs_exist_ok=True)
        today = _ask_of_package(place, place.copy, tool)
        if again is None or today.verdict != "fail":
            return today
        try:
            return with_own_round(today, _ask_of_package(place, again, tool, repaired(place, defects)), defects)
        except RepairError as error:
            return with_own_round(today, error, defects)


def _copy(folder: Path, copy: Path) -> list[str]:
    """Copy the folders that the tools read; return complaints about links out of the package. Raises OSError."""
    refused: list[str] = []

    def left_out(parent: str, names: list[str]) -> set[str]:
        paths = {name: Path(parent, name) for name in names}
        # Reading a pipe or a device would block forever; files outside of a package are not part of it.
        outward = {name for name, path in paths.items() if path.is_symlink() and _leads_out(path, folder)}
        refused.extend(f"{paths[name].relative_to(folder)} is a link that leads out of the package" for name in outward)
        return outward | {n for n, p in paths.items() if not (p.is_symlink() or p.is_file() or p.is_dir())}

    parts = [part for part in PARTS if (folder / part).is_dir()]
    outward = left_out(str(folder), parts)
    for part in parts:
        if part not in outward:
            shutil.copytree(folder / part, copy / part, symlinks=True, ignore=left_out, copy_function=shutil.copyfile)
    for parent, _, _ in os.walk(copy):
        os.chmod(parent, 0o700)  # the original may be read-only, and the tools write here
    return refused


def _leads_out(link: Path, folder: Path) -> bool:
    """Return True if `link` ends outside of `folder`, or would in a copy of it (absolute links), or nowhere."""
    try:
        return os.path.isabs(os.readlink(link)) or not link.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # nowhere, or a loop of links (OSError since Python 3.13)
        return True


def _ask_of_package(place: Workplace, copy: Path, tool: Tool, source: Path | None = None) -> OfficialVerdict:
    """Run the package checker on `copy`, then the summarizer on each system alone, since one system may abort it."""
    jobs = [Job(tool.name, (str(copy), "training", tool.ruleset, "--log_output", os.devnull), PACKAGE_SECONDS)]
    systems = sorted(path for path in copy.glob("results/*") if path.is_dir())
    for system in systems:
        alone = place.new_folder("alone")
        (alone / "results").mkdir()
        (alone / "results" / system.name).symlink_to(system)
        (alone / "systems").symlink_to(copy / "systems")
        jobs.append(Job("result_summarizer", (str(alone), tool.ruleset), PACKAGE_SECONDS))
    answer, *summaries = place.run(jobs, source)
    verdict = tool.judged(answer, place, copy)
    messages = list(verdict.messages)
    for system, summary in zip(systems, summaries, strict=True):
        messages += [place.plain(message, copy) for message in _unscored(system, summary)]
    return replace(verdict, messages=tuple(dict.fromkeys(messages)))


def _unscored(system: Path, summary: Answer) -> Iterator[str]:
    """Yield the reasons why the summarizer computes no score for a folder of results."""
    benchmarks = sorted(path.name for path in system.iterdir() if path.is_dir())
    missing = [name for name in benchmarks if name not in summary.scored]
    if not missing:
        return
    reasons = [line.strip() for line in summary.printed if line.startswith(("CRITICAL ERROR", "ERROR"))]
    if summary.raised is not None:
        reasons.append(f"it was aborted: {summary.raised}")
    if summary.unanswered is not None:
        reasons.append(summary.unanswered)
    because = f": {'; '.join(dict.fromkeys(reasons))}" if reasons else ""
    yield f"result_summarizer computes no score for {', '.join(missing)} of {system.name}{because}"
