"""Derive the verdict of MLCommons' tools from the last message that they log."""

import importlib.metadata
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from mlevents.mlcommons.messages import RuleFileValue, complaints
from mlevents.mlcommons.process import Answer, Workplace, installed
from mlevents.rounds import RULESETS
from mlevents.rounds.ruleset import Ruleset, UpstreamDefect

CheckStatus = Literal["pass", "fail", "not run"]

# The last log record of a tool that passed and of one that failed: level and message.
LAST_MESSAGES: Final = {
    "compliance_checker": (("INFO", r"SUCCESS"), ("ERROR", r"FAILED")),
    "package_checker": (
        ("INFO", r"PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"),
        ("INFO", r"PACKAGE CHECKER FOUND ERRORS, .*"),
    ),
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


class RepairError(Exception):
    """A declared repair does not match the installed rule file."""


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


def repaired(place: Workplace, defects: Sequence[UpstreamDefect]) -> Path:
    """Return a folder in `place` to import mlperf_logging from, with each defect repaired.

    The whole package is copied, since the rule files include each other. Raises RepairError if the text to replace is
    not in the installed rule file, as in another version of it."""
    folder = place.new_folder("repaired")
    copy = shutil.copytree(installed()[0], folder / "mlperf_logging")
    for defect in defects:
        file = copy / "compliance_checker" / defect.repair.file
        try:
            rules = file.read_text("utf-8")
        except OSError:
            raise RepairError(f"{defect.rule}: no rule file {defect.repair.file} to repair") from None
        if defect.repair.text not in rules:
            raise RepairError(
                f"{defect.rule}: the installed {defect.repair.file} lacks the text to replace; "
                "it is of another version than the one with this defect"
            )
        file.write_text(rules.replace(defect.repair.text, defect.repair.by), "utf-8")
    return folder


def with_own_round(
    today: OfficialVerdict, own: OfficialVerdict | RepairError, defects: Sequence[UpstreamDefect]
) -> OfficialVerdict:
    """Return the failure `today` with the verdict `own` of rule files in which `defects` are repaired, or with the
    reason why they were not."""
    meanings = tuple(defect.meaning for defect in defects)
    if isinstance(own, OfficialVerdict):
        return replace(today, own_round=own.verdict, defects=meanings)
    note = f"the round's own rules were not applied: {own}"
    return replace(today, own_round="not run", messages=(*today.messages, note), defects=meanings)


def _last_message(tool: str, answer: Answer) -> tuple[CheckStatus, list[str]]:
    """Return the verdict, and messages on how it was reached."""
    if answer.unanswered is not None:
        return "not run", [answer.unanswered]
    if answer.raised is not None and answer.missing:
        return "not run", [f"{tool} gave no verdict: {answer.raised}"]
    if answer.raised is not None:
        return "fail", [f"{tool} was aborted: {answer.raised}"]
    passed, failed = LAST_MESSAGES[tool]
    for level, entry in reversed(answer.log):
        if passes := level == passed[0] and re.fullmatch(passed[1], entry, re.DOTALL) is not None:
            break
        if level == failed[0] and re.fullmatch(failed[1], entry, re.DOTALL):
            break
    else:
        last = answer.errors[-1] if answer.errors else f"exit status {answer.exit}"
        return "not run", [f"{tool} gave no verdict: {last}"]
    if tool == "compliance_checker" and (answer.exit in (0, None)) != passes:  # that of others says nothing
        return "fail", [f"{tool} reports {'pass' if passes else 'fail'}, but exits with status {answer.exit}"]
    return ("pass" if passes else "fail"), []
