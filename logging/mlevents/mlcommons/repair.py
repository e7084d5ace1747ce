"""MLCommons' checker with the declared upstream defects of a ruleset repaired, as a copy beside the installed one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mlevents.mlcommons.messages import Named
from mlevents.mlcommons.process import Workplace, installed
from mlevents.rounds import RULESETS, Ruleset
from mlevents.rounds.ruleset import UpstreamDefect


class RepairError(Exception):
    """A declared repair does not fit the installed rule file."""


def concerning(ruleset: str | Ruleset, log: Named) -> tuple[UpstreamDefect, ...]:
    """The declared defects of `ruleset` that are about the benchmark and division a log names."""
    rules = RULESETS.get(ruleset) if isinstance(ruleset, str) else ruleset
    if rules is None:
        return ()
    benchmarks, divisions = log.of("submission_benchmark"), log.of("submission_division")
    return tuple(one for one in rules.defects if one.benchmark in benchmarks and one.division in divisions)


def identity(defect: UpstreamDefect) -> tuple[str, str, str]:
    """What tells two defects of a ruleset apart."""
    return defect.rule, defect.benchmark, defect.division


def repaired(place: Workplace, defects: Sequence[UpstreamDefect]) -> Path:
    """A folder in `place` to import mlperf_logging from, with each defect repaired; the rule files call each other.

    Raises RepairError where the text to be replaced is not in the installed rule file, as in another version of it.
    """
    sources = installed()
    if not sources:
        raise RepairError("mlperf_logging is not installed")
    folder = place.new_folder("repaired")
    copy = shutil.copytree(sources[0], folder / "mlperf_logging")
    for defect in defects:
        file = copy / "compliance_checker" / defect.repair.file
        try:
            rules = file.read_text("utf-8")
        except OSError:
            raise RepairError(f"{defect.rule}: there is no rule file {defect.repair.file} to repair") from None
        if defect.repair.text not in rules:
            raise RepairError(
                f"{defect.rule}: the installed {defect.repair.file} does not hold the text to be repaired; "
                "it is of another version than the one this defect was found in"
            )
        file.write_text(rules.replace(defect.repair.text, defect.repair.by), "utf-8")
    return folder
