"""Verdict on a submission against a record: both are examined in turns on one machine, and their times compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from judging.comparison.speedup_ratio import Ratio, compare
from judging.ground.errors import ExitCode
from judging.scoring.interval import as_values
from referee.series import Series


@dataclass(frozen=True)
class Retiming:
    """Examinations of a submission and of a record in turns; a breach by either ends both series."""

    submission: Series
    record: Series

    @cached_property
    def ratio(self) -> Ratio | None:
        """Return the ratio of the training times, record / submission, from pairs; None unless both have all."""
        if any(series.breach or series.unfinished for series in (self.submission, self.record)):
            return None
        ratio = compare(self.record.seconds, self.submission.seconds, paired=True)
        return replace(ratio, slow="the record", fast="the submission")

    @property
    def exit_code(self) -> ExitCode:
        """Return that of the submission, ERROR after a breach by the record, or INCONCLUSIVE if that is undecided."""
        if self.record.breach:
            return ExitCode.ERROR
        return self.submission.exit_code or (ExitCode.INCONCLUSIVE if self.record.undecided else ExitCode.OK)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        portable = self.ratio and self.ratio.portable and [*vars(self.ratio.portable).values()]
        ratio = self.ratio and as_values(self.ratio) | {"verdict": self.ratio.verdict, "portable": portable}
        return {"submission": self.submission.as_json(), "record": self.record.as_json(), "ratio": ratio}

    def lines(self, width: int | None) -> list[str]:
        """Return the tables of both and the comparison."""
        lines = ["the record:", *self.record.lines(width), "", "the submission:", *self.submission.lines(width)]
        return [*lines, "", self.ratio.sentence, self.ratio.portable_text] if self.ratio else lines
