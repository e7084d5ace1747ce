"""Check that logs agree with their folder, organization, system description and the peak of its accelerators, and that
none is included twice.

No tool of MLCommons compares them (mlcommons/logging issues 241, 254 and 387).
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mlevents import keys
from mlevents.checks.copies import copy_groups
from mlevents.event import Finding, Level, listed, short
from mlevents.package_checker.files import shown
from mlevents.package_checker.system_description import SystemDescription, count_of
from mlevents.record import read
from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary
from mlevents.terminal_escape import printable

MOST_NAMED: Final = 12  # copies that a finding names
# The words of both vocabularies in all rounds by what they mean; "available" was used for two meanings.
STATUSES: Final = (
    ("cloud", "available cloud", "available"),
    ("onprem", "on-premise", "available on-premise", "available on premise", "available"),
    ("preview",),
    ("research", "rdi", "research, development, or internal (rdi)"),
)
# Dense peak in TFLOP/s (TOP/s) of one accelerator at the lowest precision that it has and training uses, by a word of
# accelerator_model_name; of several variants (SXM, PCIe, NVL) the fastest. From the vendors' data sheets and
# documentation: NVIDIA's give sparse peaks, which are twice the dense ones but for Blackwell Ultra.
PEAK_TFLOPS: Final = (
    {"v100": 125, "a100": 312}  # FP16
    | {"l40s": 733, "h100": 1979, "h200": 1979, "gh200": 1979}  # FP8
    | {"b200": 9000, "gb200": 10_000, "b300": 14_000, "gb300": 15_000}  # FP4: HGX B200, GB200 NVL72, HGX, GB300 NVL72
    | {"mi300x": 2615, "mi325x": 2615}  # FP8
    | {"mi350x": 9200, "mi355x": 10_100}  # FP4 and FP6
    | {"gaudi2": 865, "gaudi3": 1835}  # FP8
    | {"v5e": 393, "v5p": 918, "trillium": 1836, "v6e": 1836}  # INT8: docs.cloud.google.com/tpu/docs
)
# The highest share of the peak in the published rounds from v2.0 to v5.1 is 0.45 (docs/published_rounds.md).
SUSPICIOUS: Final = 0.75


def check_logs(
    root: Path,
    system: str,
    benchmark: str,
    logs: Sequence[RunSummary],
    description: SystemDescription | None,
    systems: frozenset[str],
) -> Iterator[Finding]:
    """Yield findings about the logs of results/`system`/`benchmark` below `root`, one for each value that disagrees.
    `systems`: every system id of the submission."""
    organization = os.path.basename(os.path.realpath(root))
    disagreeing: dict[Disagreement, list[Path]] = defaultdict(list)
    for log in logs:
        found = [*_with_folders(log, organization, system, benchmark, systems)]
        if description is not None and description.readable:
            found += _with_description(log, description, printable(f"systems/{system}.json"))
        for disagreement in found:
            disagreeing[disagreement].append(log.path)
    for (key, level, rule, message), (first, *others) in disagreeing.items():
        more = f" (also in {len(others)} more logs)" if others else ""
        event = read(first).last(key)
        line = event.line if event else None
        yield Finding(level=level, rule=rule, message=f"{key} {message}{more}", line=line, path=shown(first))


Disagreement = tuple[str, Level, str, str]  # key, level, rule, message


def _with_folders(
    log: RunSummary, organization: str, system: str, benchmark: str, systems: frozenset[str]
) -> Iterator[Disagreement]:
    """Yield each value that disagrees with the folders the log is in."""
    if log.benchmark not in (None, benchmark):
        message = f"is {short(log.benchmark)}, but the log is scored as its folder's benchmark, {short(benchmark)}"
        yield keys.SUBMISSION_BENCHMARK, "error", "benchmark-agrees", message
    if log.organization is not None and not same_name(log.organization, organization):
        # A warning: the folder may have been renamed when the submission was unpacked.
        message = f"is {short(log.organization)}, but the submission's folder is {short(organization)}"
        yield keys.SUBMISSION_ORG, "warning", "organization-agrees", message
    if log.platform is None or same_name(log.platform, system):
        return
    if log.platform in systems:
        message = f"is {short(log.platform)}, another system of this submission; the log is in the folder of"
        yield keys.SUBMISSION_PLATFORM, "error", "platform-agrees", f"{message} {short(system)}"
    else:
        message = f"is {short(log.platform)}, but the folder is {short(system)}; use one name for a system"
        yield keys.SUBMISSION_PLATFORM, "warning", "platform-agrees", message


def _with_description(log: RunSummary, description: SystemDescription, place: str) -> Iterator[Disagreement]:
    """Yield each value that disagrees with the system description at `place`."""
    submitter, division, status = (description.text(key) for key in ("submitter", "division", "status"))
    if log.organization is not None and submitter is not None and not same_name(log.organization, submitter):
        message = f"is {short(log.organization)}, but the submitter in {place} is {short(submitter)}; use one name"
        yield keys.SUBMISSION_ORG, "error", "organization-agrees", message
    if log.division is not None and division is not None and log.division.lower() != division.lower():
        message = f"is {short(log.division)}, but {place} says {short(division)}, which selects MLCommons' checks"
        yield keys.SUBMISSION_DIVISION, "error", "division-agrees", message
    if log.submission_status is not None and not same_status(log.submission_status, status):
        message = f"is {short(log.submission_status)}, but the status in {place} is {short(status)}; they must agree"
        yield keys.SUBMISSION_STATUS, "error", "status-agrees", message


def check_copies(logs: Iterable[RunSummary], root: Path) -> Iterator[Finding]:
    """Yield findings about logs that are in two folders of a submission, unchanged or edited; `check_set` compares
    within a folder."""
    for (first, *others), how, level in copy_groups(logs):
        apart = [log for log in others if log.path.parent != first.path.parent]
        if level == "error" and apart:
            paths = (log.path for log in (first, *apart))
            places = [shown(path.relative_to(root) if path.is_relative_to(root) else path) for path in paths]
            names = listed(places, MOST_NAMED)
            yield Finding(level=level, rule="copied-log", message=f"{names} {how}", path=shown(apart[0].path))


def check_throughput(
    logs: Sequence[RunSummary], description: SystemDescription, rules: BenchmarkRules
) -> Iterator[Finding]:
    """Yield findings about runs that trained faster than the accelerators of `description` could.

    The operations of the reference's model are a lower bound of a closed run; an open run may have a smaller model, so
    the finding on it is a warning. Accelerators of unknown peak and benchmarks of unknown operations are skipped."""
    model = description.text("accelerator_model_name") or ""
    peaks = [PEAK_TFLOPS[word] for word in re.findall(r"[a-z0-9]+", model.lower()) if word in PEAK_TFLOPS]
    counts = [count_of(description.values.get(key)) for key in ("number_of_nodes", "accelerators_per_node")]
    accelerators = (counts[0] or 0) * (counts[1] or 0)
    if not peaks or accelerators < 1 or rules.training_flop is None:
        return
    for run in logs:
        if run.is_demonstration or not run.minutes or run.minutes < 0:
            continue
        trained = max((point.progress for point in run.quality if point.minutes <= run.minutes), default=0.0)
        rate = trained * rules.training_flop / (60e12 * run.minutes)
        share = rate / (max(peaks) * accelerators)
        if share > SUSPICIOUS:
            message = (
                f"{trained:,.0f} {rules.unit} in {run.minutes:.3f} minutes require at least {rate:,.0f} TFLOP/s of the "
                f"reference's model, {share:.2f} of the peak of {accelerators} {model} in its system description"
            )
            closed = run.division == keys.CLOSED
            message += "" if closed else "; an open run may have a smaller model"
            level: Level = "error" if closed and share > 1 else "warning"
            yield Finding(level=level, rule="throughput", message=message, path=shown(run.path))


def same_name(first: str, second: str) -> bool:
    """Return True if two names differ at most in case, spaces and punctuation, which folder names often lack."""
    return _letters(first) == _letters(second)


def same_status(logged: str, described: str | None) -> bool:
    """Return True if a log's submission_status can mean the description's status; unknown words agree with all."""
    words = (logged.lower(), (described or "").lower())
    first, second = ({place for place, known in enumerate(STATUSES) if word in known} for word in words)
    return not (first and second) or bool(first & second)


def _letters(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum()) or name
