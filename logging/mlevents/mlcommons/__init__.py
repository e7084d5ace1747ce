"""Run MLCommons' compliance checker on many logs in one child process, and its package checker and result summarizer on
a copy of an organization's folder. The last message that a tool logs gives its verdict."""

import importlib.metadata
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from mlevents.mlcommons.messages import RuleFileValue, complaints, rule_file_values, too_long, unsafe
from mlevents.mlcommons.process import Answer, Job, Workplace, installed
from mlevents.rounds import RULESETS
from mlevents.rounds.ruleset import Repair, Ruleset, UpstreamDefect

CheckStatus = Literal["pass", "fail", "not run"]

LOG_SECONDS: Final = 120.0
PARTS: Final = ("systems", "results", "benchmarks")  # all that the package checker looks at
PACKAGE_SECONDS: Final = 600.0
# The last log record of a tool that passed and of one that failed: level and message.
LAST_MESSAGES: Final[dict[str, dict[tuple[str, str], CheckStatus]]] = {
    "compliance_checker": {("INFO", "SUCCESS"): "pass", ("ERROR", "FAILED"): "fail"},
    "package_checker": {
        ("INFO", r"PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"): "pass",
        ("INFO", r"PACKAGE CHECKER FOUND ERRORS, .*"): "fail",
    },
}


@dataclass(frozen=True)
class OfficialVerdict:
    """Verdict of one of MLCommons' tools. `messages` are its complaints; a log or package may pass with some.

    `verdict` is by today's rule files; "not run" if the tool could not run, and `messages` then say why. If it failed
    and a declared upstream defect concerns the log, `own_round` is the verdict by rule files with the declared repairs,
    and `defects` describes the defects; otherwise `own_round` equals `verdict`."""

    verdict: CheckStatus
    tool: str
    checker: str
    ruleset: str
    messages: tuple[str, ...]
    own_round: CheckStatus = "not run"
    defects: tuple[str, ...] = ()


def checker_version() -> str:
    """Return the name and version of the installed checkers, such as "mlperf-logging 4.1.68"."""
    if not installed():
        return "mlperf-logging (not installed)"
    return f"mlperf-logging {importlib.metadata.version('mlperf-logging')}"


@dataclass(frozen=True)
class Tool:
    """A checker of MLCommons with the ruleset that it is run for."""

    name: str
    ruleset: str

    @property
    def rules(self) -> Ruleset | None:
        return RULESETS.get(self.ruleset)

    @property
    def unable(self) -> str:
        """Return why the checker cannot run, "" if it can."""
        if self.rules is not None and not self.rules.checker:
            return f"MLCommons' tools have no ruleset {self.ruleset!r}"
        return "" if installed() else "mlperf_logging is not installed; install mlperf-logging"

    def verdict(self, verdict: CheckStatus, *messages: str) -> OfficialVerdict:
        """Return a verdict, by the round's own rules too, with each message once."""
        said = tuple(dict.fromkeys(messages))
        return OfficialVerdict(verdict, self.name, checker_version(), self.ruleset, said, own_round=verdict)

    def no_copy(self, error: OSError) -> OfficialVerdict:
        """Return the verdict if a copy failed."""
        return self.verdict("not run", f"no copy could be made for MLCommons' tools: {error.strerror or error}")

    def judged(self, answer: Answer, place: Workplace, base: Path) -> OfficialVerdict:
        """Return the verdict of `answer`. Paths in its messages are relative to `base`."""
        verdict, said = _last_message(self.name, answer)
        if verdict != "not run":
            said += complaints(answer.log)
        return self.verdict(verdict, *(place.plain(message, base) for message in said))

    def defects(self, log: Iterable[RuleFileValue]) -> tuple[UpstreamDefect, ...]:
        """Return the declared defects of the ruleset that concern the benchmark and division of a log."""
        logged = {(key, value) for key, value, _ in log}
        return tuple(
            defect
            for defect in (self.rules.defects if self.rules else ())
            if {("submission_benchmark", defect.benchmark), ("submission_division", defect.division)} <= logged
        )


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
        verdicts |= zip(logs, _ask_of_logs(place, logs.values(), tool), strict=True)
        for defects, numbers in concerned.values():
            failed = {number: logs[number] for number in numbers if verdicts[number].verdict == "fail"}
            if failed:
                ask = partial(_ask_of_logs, place, failed.values(), tool)
                today = [verdicts[number] for number in failed]
                verdicts |= zip(failed, _with_own_round(place, defects, today, ask), strict=True)
    return [verdicts[number] for number in range(len(paths))]


def _ask_of_logs(
    place: Workplace, logs: Collection[Path], tool: Tool, source: Path | None = None
) -> list[OfficialVerdict]:
    """Return the verdicts on the copies `logs`, by the rule files in `source` or the installed ones."""
    options = ("--usage", "training", "--ruleset", tool.ruleset, "--log_output", os.devnull)
    answers = place.run([Job(tool.name, (*options, str(log)), LOG_SECONDS) for log in logs], source)
    return [tool.judged(answer, place, log.parent) for log, answer in zip(logs, answers, strict=True)]


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
        return _with_own_round(place, defects, [today], lambda source: [_ask_of_package(place, again, tool, source)])[0]


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
    unscored = (message for pair in zip(systems, summaries, strict=True) for message in _unscored(*pair))
    messages = (*verdict.messages, *(place.plain(message, copy) for message in unscored))
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


def _with_own_round(
    place: Workplace,
    defects: Sequence[UpstreamDefect],
    failed: Sequence[OfficialVerdict],
    ask: Callable[[Path], Iterable[OfficialVerdict]],
) -> list[OfficialVerdict]:
    """Return the verdicts `failed`, each with that by rule files in which `defects` are repaired, from whose folder
    `ask` gets it, or with the reason why they were not."""
    meanings = tuple(defect.meaning for defect in defects)
    try:
        repaired = _repaired(place, defects)
    except LookupError as error:
        note = f"the round's own rules were not applied: {error}"
        return [replace(one, own_round="not run", messages=(*one.messages, note), defects=meanings) for one in failed]
    own = ask(repaired)
    return [replace(one, own_round=other.verdict, defects=meanings) for one, other in zip(failed, own, strict=True)]


def _repaired(place: Workplace, defects: Sequence[UpstreamDefect]) -> Path:
    """Return a folder in `place` to import mlperf_logging from, with each defect repaired.

    The whole package is copied, since the rule files include each other. Raises LookupError if the text to replace is
    not in the installed rule file, as in another version of it."""
    folder = place.new_folder("repaired")
    copy = shutil.copytree(installed()[0], folder / "mlperf_logging")
    for defect in defects:
        file = copy / "compliance_checker" / defect.repair.file
        try:
            rules = file.read_text("utf-8")
        except OSError:
            raise LookupError(f"{defect.rule}: no rule file {defect.repair.file} to repair") from None
        if defect.repair.text not in rules:
            raise LookupError(
                f"{defect.rule}: the installed {defect.repair.file} lacks the text to replace; "
                "it is of another version than the one with this defect"
            )
        file.write_text(rules.replace(defect.repair.text, defect.repair.by), "utf-8")
    return folder


def _last_message(tool: str, answer: Answer) -> tuple[CheckStatus, list[str]]:
    """Return the verdict, and messages on how it was reached."""
    if answer.unanswered is not None:
        return "not run", [answer.unanswered]
    if answer.raised is not None and answer.missing:
        return "not run", [f"{tool} gave no verdict: {answer.raised}"]
    if answer.raised is not None:
        return "fail", [f"{tool} was aborted: {answer.raised}"]
    ends = ((entry, *end) for entry in reversed(answer.log) for end in LAST_MESSAGES[tool].items())
    said = (status for (at, text), (level, end), status in ends if at == level and re.fullmatch(end, text, re.DOTALL))
    if (status := next(said, None)) is None:
        why = answer.errors[-1] if answer.errors else f"exit status {answer.exit}"
        return "not run", [f"{tool} gave no verdict: {why}"]
    if tool == "compliance_checker" and (answer.exit in (0, None)) != (status == "pass"):  # that of others says nothing
        return "fail", [f"{tool} reports {status}, but exits with status {answer.exit}"]
    return status, []
