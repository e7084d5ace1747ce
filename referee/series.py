"""Verdict on several examinations of one submission: the mean loss against the target, and the time's interval."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from judging.ground.errors import ExitCode
from judging.pages.table import Table
from judging.scoring.target_test import LEVEL, NotTestable, TargetTest, target_test
from mlevents.student_t import mean_margin
from referee.verdict import Verdict


@dataclass(frozen=True)
class Series:
    """Examinations of one submission, each with other seeds; those after one with a breach are not run.

    Args:
        verdicts: verdicts of two or more examinations without a target, or of those up to the first with a breach.
        target: loss in nats that the mean must reach with p < 0.01 by a one-sided t test; None for no target.
    """

    verdicts: list[Verdict]
    target: float | None

    @property
    def breach(self) -> Verdict | None:
        """Return the verdict that rejects the submission, whatever its loss; None if there is none."""
        return next((verdict for verdict in self.verdicts if verdict.failed), None)

    @property
    def losses(self) -> list[float]:
        """Return the validation loss of each examination that got so far, in nats."""
        return [verdict.loss for verdict in self.verdicts if verdict.loss is not None]

    @property
    def seconds(self) -> list[float]:
        """Return the training time of each examination that got so far."""
        return [verdict.train_seconds for verdict in self.verdicts if verdict.train_seconds is not None]

    @cached_property
    def test(self) -> TargetTest | NotTestable | None:
        """Return the test of the mean loss against the target, None without a target or after a breach.

        There is none of equal losses either, such as those of a submission that does not use its seed.
        """
        if self.target is None or self.breach:
            return None
        try:
            return target_test(self.losses, self.target, higher_is_better=False)
        except NotTestable as error:
            return error

    @property
    def reason(self) -> str:
        """Return why the target is not reached; empty if it is reached or not tested."""
        test = self.test
        if isinstance(test, NotTestable):
            return str(test)
        if test is None or test.passed:
            return ""
        needed = f"about {test.runs_needed:,} runs would show it" if test.runs_needed else "the mean misses it"
        return f"p = {test.p_t:.2g} by the t test, not below {LEVEL} ({test.p_sign:.2g} by the sign test); {needed}"

    @property
    def _tested(self) -> TargetTest | None:
        return self.test if isinstance(self.test, TargetTest) else None

    @property
    def exit_code(self) -> ExitCode:
        """Return OK if the submission is accepted, TARGET_NOT_REACHED if only the target fails, else ERROR."""
        if self.breach:
            return ExitCode.ERROR
        return ExitCode.TARGET_NOT_REACHED if self.reason else ExitCode.OK

    @property
    def sentence(self) -> str:
        """Return the verdict as one line."""
        if self.breach:
            return f"run {self.verdicts.index(self.breach) + 1}: {self.breach.sentence}"
        where = "" if all(verdict.isolated for verdict in self.verdicts) else "; NOT ISOLATED"
        measured = (
            f"mean loss {_mean(self.losses, 4)} in {_mean(self.seconds, 2)} s of training, {len(self.verdicts)} runs"
        )
        if self.reason:
            return f"rejected: target {self.target:.4f}, {measured}: {self.reason}{where}"
        reached = ""
        if test := self._tested:
            reached = f"; target {self.target:.4f} reached with p = {test.p_t:.2g} ({test.p_sign:.2g} by the sign test)"
        return f"accepted: {measured}{reached}{where}"

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        test = self._tested
        shown = {"accepted": self.exit_code is ExitCode.OK, "losses": self.losses, "train_seconds": self.seconds}
        statistics = {"target": self.target, "p_t": test and test.p_t, "p_sign": test and test.p_sign}
        return {
            **shown,
            **statistics,
            "verdict": self.sentence,
            "runs": [verdict.as_json() for verdict in self.verdicts],
        }

    def lines(self, width: int | None) -> list[str]:
        """Return a table of the runs, or the probes of the one with a breach, and the verdict."""
        if self.breach:
            return [*self.breach.lines(width)[:-1], self.sentence]
        rows = [
            [
                str(number),
                f"{verdict.loss:.4f}",
                f"{verdict.standard_error:.4f}",
                f"{verdict.train_seconds:.2f}",
                "pass",
            ]
            for number, verdict in enumerate(self.verdicts, 1)
        ]
        header = ["run", "loss", "standard error", "train s", "probes"]
        return [*Table(header, rows).lines(width), "", self.sentence]


def _mean(values: list[float], digits: int) -> str:
    """Return the mean with its 95 % interval by Student's t."""
    return f"{fmean(values):.{digits}f} +- {mean_margin(values):.{digits}f}"
