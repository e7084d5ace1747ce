"""The verdict of one of MLCommons' tools: what it says and what it returns, which have to agree."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from mlevents.mlcommons.messages import complaints
from mlevents.mlcommons.process import Answer, Workplace, installed
from mlevents.rounds import RULESETS, Ruleset
from mlevents.rounds.ruleset import UpstreamDefect

CheckStatus = Literal["pass", "fail", "not run"]

# What a tool says last when it passes and when it fails: level and words.
LAST_WORDS: Final = {
    "compliance_checker": (("INFO", r"SUCCESS"), ("ERROR", r"FAILED")),
    "package_checker": (
        ("INFO", r"PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"),
        ("INFO", r"PACKAGE CHECKER FOUND ERRORS, .*"),
    ),
    "system_desc_checker": (
        ("INFO", r"  System description checker passed for .*"),
        ("ERROR", r"  System description checker failed for .*"),
    ),
}


@dataclass(frozen=True)
class OfficialVerdict:
    """What one of MLCommons' tools said. `messages` are its complaints; a log or package may pass with some.

    `verdict` is by today's rule files; "not run" where the tool could not be asked, and the messages then say why.
    Where it failed and a declared upstream defect concerns what was checked, `own_round` is the verdict by rule files
    with the declared repairs, `own_messages` the complaints left then, and `defects` says what the defects are.
    `own_round` equals `verdict` everywhere else.

    `returned` is what the functions that decide for the tool returned. Of a package: `convergence` is what the package
    checker says about reference convergence points (it looks at them only where systems/<system>.json says "closed"),
    `scores` are the result summarizer's minutes by system folder and benchmark, after the package checker as in
    MLCommons' own scripts, so that a scaling.json it writes counts; `own_scores` are those by the repaired rule files.
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
    """The installed checkers as in "mlperf-logging 4.1.68", or that there are none."""
    if installed() is None:
        return "mlperf-logging (not installed)"
    try:
        return f"mlperf-logging {importlib.metadata.version('mlperf-logging')}"
    except importlib.metadata.PackageNotFoundError:
        return "mlperf-logging (no version)"


def rules_name(ruleset: str | Ruleset) -> str:
    """What MLCommons' tools call the ruleset."""
    return ruleset if isinstance(ruleset, str) else ruleset.name


def unable(ruleset: str | Ruleset) -> str | None:
    """Why no tool can be asked about `ruleset` at all, or None."""
    rules = RULESETS.get(ruleset) if isinstance(ruleset, str) else ruleset
    if rules is not None and not rules.checker:
        return f"MLCommons' tools have no rules {rules.name!r}"
    if installed() is None:
        return "mlperf_logging is not installed; install mlperf-logging"
    return None


def without_run(
    verdict: CheckStatus, tool: str, ruleset: str | Ruleset, messages: Iterable[str], place: Workplace | None = None
) -> OfficialVerdict:
    """A verdict reached without the tool's own."""
    told = tuple(dict.fromkeys(message if place is None else place.plain(message) for message in messages))
    return OfficialVerdict(verdict, tool, checker_version(), rules_name(ruleset), told, own_round=verdict)


def no_copy(error: OSError) -> str:
    """That there is no place for the tools to work in, and why."""
    return f"no copy could be made for MLCommons' tools to work on: {error.strerror or error}"


def judged(
    tool: str, ruleset: str | Ruleset, answer: Answer, place: Workplace, base: Path | None = None
) -> OfficialVerdict:
    """The verdict that `answer` gives: the tool's last words and what it returned; where they disagree it fails.

    Paths in its words are told from `base` on (default: the place's copy).
    """
    verdict, told = _said(tool, answer)
    if verdict != "not run":
        told += complaints(answer.log)
    messages = tuple(dict.fromkeys(place.plain(message, base) for message in told))
    return OfficialVerdict(
        verdict,
        tool,
        checker_version(),
        rules_name(ruleset),
        messages,
        own_round=verdict,
        returned=answer.returned,
    )


def with_own_round(today: OfficialVerdict, own: OfficialVerdict, defects: Sequence[UpstreamDefect]) -> OfficialVerdict:
    """Today's failure with what the rule files say once `defects` are repaired."""
    return replace(
        today,
        own_round=own.verdict,
        own_messages=own.messages,
        own_scores=own.scores,
        defects=tuple(defect.meaning for defect in defects),
    )


def not_repaired(today: OfficialVerdict, defects: Sequence[UpstreamDefect], reason: Exception) -> OfficialVerdict:
    """Today's failure where the declared repairs do not fit, which the messages say."""
    told = f"the round's own rules were not tried: {reason}"
    meanings = tuple(defect.meaning for defect in defects)
    return replace(today, own_round="not run", messages=(*today.messages, told), defects=meanings)


def _said(tool: str, answer: Answer) -> tuple[CheckStatus, list[str]]:
    """The verdict and, in front of the tool's own complaints, what is to be said about how it was reached."""
    if answer.unanswered is not None:
        return "not run", [answer.unanswered]
    if answer.raised is not None and answer.missing:
        return "not run", [f"{tool} gave no verdict: {answer.raised}"]
    if answer.raised is not None:
        return "fail", [f"{tool} broke off: {answer.raised}"]
    passed, failed = LAST_WORDS[tool]
    for level, entry in reversed(answer.log):
        if said_so := level == passed[0] and re.fullmatch(passed[1], entry, re.DOTALL) is not None:
            break
        if level == failed[0] and re.fullmatch(failed[1], entry, re.DOTALL):
            break
    else:
        last = answer.errors[-1] if answer.errors else f"exit status {answer.exit}"
        return "not run", [f"{tool} gave no verdict: {last}"]
    word: CheckStatus = "pass" if said_so else "fail"
    returned = {**answer.returned}
    if tool == "compliance_checker":  # the one whose exit status means something
        returned["its exit status"] = answer.exit in (0, None)
    if returned and all(returned.values()) == said_so:
        return word, []
    others = ", ".join(f"{name}: {'pass' if value else 'fail'}" for name, value in returned.items())
    return "fail", [f"{tool} says {word}, but what it returned does not ({others or 'nothing'})"]
