"""Derive the verdict of MLCommons' tools from their output and their return values, which must agree."""

import importlib.metadata
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from mlevents.mlcommons.messages import complaints
from mlevents.mlcommons.process import Answer, Workplace, installed
from mlevents.rounds import RULESETS
from mlevents.rounds.ruleset import UpstreamDefect

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
    `own_messages` the remaining complaints, and `defects` describes the defects; otherwise `own_round` equals
    `verdict`.

    `returned` are the return values of the functions that decide for the tool. Of a package: `convergence` are the
    package checker's messages on reference convergence points (which it checks only if systems/<system>.json says
    "closed"), `scores` are the result summarizer's minutes by system folder and benchmark, after the package checker as
    in MLCommons' own scripts, so that a scaling.json it writes counts; `own_scores` are those by the repaired rule
    files.
    """

    verdict: CheckStatus
    tool: str
    checker: str
    ruleset: str
    messages: tuple[str, ...]
    own_round: CheckStatus = "not run"
    defects: tuple[str, ...] = ()
    own_messages: tuple[str, ...] = ()
    returned: dict[str, bool] = field(default_factory=dict)
    convergence: tuple[str, ...] = ()
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    own_scores: dict[str, dict[str, float]] = field(default_factory=dict)


def checker_version() -> str:
    """Return the name and version of the installed checkers, such as "mlperf-logging 4.1.68"."""
    if installed() is None:
        return "mlperf-logging (not installed)"
    return f"mlperf-logging {importlib.metadata.version('mlperf-logging')}"


def unable(ruleset: str) -> str | None:
    """Return why no tool can run for `ruleset`, or None."""
    rules = RULESETS.get(ruleset)
    if rules is not None and not rules.checker:
        return f"MLCommons' tools have no ruleset {ruleset!r}"
    if installed() is None:
        return "mlperf_logging is not installed; install mlperf-logging"
    return None


def without_run(
    verdict: CheckStatus, tool: str, ruleset: str, messages: Iterable[str], place: Workplace | None = None
) -> OfficialVerdict:
    """Return a verdict that was reached without running the tool."""
    kept = tuple(dict.fromkeys(message if place is None else place.plain(message) for message in messages))
    return OfficialVerdict(verdict, tool, checker_version(), ruleset, kept, own_round=verdict)


def no_copy(error: OSError) -> str:
    """Return the message for a copy that failed."""
    return f"no copy could be made for MLCommons' tools: {error.strerror or error}"


def judged(tool: str, ruleset: str, answer: Answer, place: Workplace, base: Path | None = None) -> OfficialVerdict:
    """Return the verdict of `answer`: the tool's last message and its return values; it fails if they disagree.

    Paths in its messages are relative to `base` (default: the copy).
    """
    verdict, said = _last_message(tool, answer)
    if verdict != "not run":
        said += complaints(answer.log)
    messages = tuple(dict.fromkeys(place.plain(message, base) for message in said))
    version = checker_version()
    return OfficialVerdict(verdict, tool, version, ruleset, messages, own_round=verdict, returned=answer.returned)


def with_own_round(today: OfficialVerdict, own: OfficialVerdict, defects: Sequence[UpstreamDefect]) -> OfficialVerdict:
    """Return the failure `today` with the verdict `own` of rule files in which `defects` are repaired."""
    return replace(
        today,
        own_round=own.verdict,
        own_messages=own.messages,
        own_scores=own.scores,
        defects=tuple(defect.meaning for defect in defects),
    )


def not_repaired(today: OfficialVerdict, defects: Sequence[UpstreamDefect], reason: Exception) -> OfficialVerdict:
    """Return the failure `today` with the `reason` for which the declared repairs could not be applied."""
    note = f"the round's own rules were not applied: {reason}"
    meanings = tuple(defect.meaning for defect in defects)
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
    word: CheckStatus = "pass" if passes else "fail"
    returned = {**answer.returned}
    if tool == "compliance_checker":  # the only tool with a meaningful exit status
        returned["its exit status"] = answer.exit in (0, None)
    if returned and all(returned.values()) == passes:
        return word, []
    others = ", ".join(f"{name}: {'pass' if value else 'fail'}" for name, value in returned.items())
    return "fail", [f"{tool} reports {word}, but its return values do not ({others or 'none'})"]
