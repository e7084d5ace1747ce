"""Copy MLCommons' checker and repair the declared upstream defects of a ruleset in the copy."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlevents.mlcommons.messages import RuleFileValue
from mlevents.mlcommons.process import Workplace, installed
from mlevents.rounds import RULESETS
from mlevents.rounds.ruleset import UpstreamDefect


class RepairError(Exception):
    """A declared repair does not match the installed rule file."""


def concerning(ruleset: str, log: Iterable[RuleFileValue]) -> tuple[UpstreamDefect, ...]:
    """Return the declared defects of `ruleset` that concern the benchmark and division of a log."""
    rules = RULESETS.get(ruleset)
    if rules is None:
        return ()
    logged = {(key, value) for key, value, _ in log}
    return tuple(
        defect
        for defect in rules.defects
        if {("submission_benchmark", defect.benchmark), ("submission_division", defect.division)} <= logged
    )


def repaired(place: Workplace, defects: Sequence[UpstreamDefect]) -> Path:
    """Return a folder in `place` to import mlperf_logging from, with each defect repaired.

    The whole package is copied, since the rule files include each other. Raises RepairError if the text to replace is
    not in the installed rule file, as in another version of it."""
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
            raise RepairError(f"{defect.rule}: no rule file {defect.repair.file} to repair") from None
        if defect.repair.text not in rules:
            raise RepairError(
                f"{defect.rule}: the installed {defect.repair.file} lacks the text to replace; "
                "it is of another version than the one with this defect"
            )
        file.write_text(rules.replace(defect.repair.text, defect.repair.by), "utf-8")
    return folder
