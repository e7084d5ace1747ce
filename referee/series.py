"""Verdict on several examinations of one submission: the mean quality against the target, and the time's interval; or
on a submission against a record, which are examined in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from judging.comparison.speedup_ratio import Ratio, compare
from judging.ground import stdio
from judging.ground.errors import ExitCode
from judging.pages.table import Table
from judging.scoring.interval import as_values
from judging.scoring.target_test import LEVEL, NotTestable, TargetTest, target_test
from mlevents.student_t import mean_margin
from referee.training_time import Allowance
from referee.verdict import Verdict


@dataclass(frozen=True)
class Series:
    """Examinations of one submission, each with other seeds; those after one with a breach are not run.

    Args:
        verdicts: verdicts of the examinations that ended, without a target: up to the first with a breach.
        target: loss in nats, or accuracy, that the mean must reach with p < 0.01 by a one-sided t test; None for none.
        planned: number of examinations, of which an interruption can leave some; None for as many as there are.
        allowed: by how much the training times may differ, without waits that other processes explain.
    """

    verdicts: list[Verdict]
    target: float | None
    planned: int | None = None
    allowed: Allowance = Allowance()

    @property
    def breach(self) -> Verdict | None:
        """Return the verdict that rejects the submission, whatever its loss; None if there is none."""
        return next((verdict for verdict in self.verdicts if verdict.exit_code is ExitCode.ERROR), None)

    @property
    def finished(self) -> list[Verdict]:
        """Return the verdicts that do not reject the submission."""
        return [verdict for verdict in self.verdicts if verdict.exit_code is not ExitCode.ERROR]

    @property
    def undecided(self) -> Verdict | None:
        """Return a verdict with a finding that is neither for nor against the submission, if there is one."""
        return next((verdict for verdict in self.verdicts if verdict.undecided), None)

    @property
    def unfinished(self) -> bool:
        """Return True if examinations were planned that have not ended."""
        return len(self.verdicts) < (self.planned or 0)

    @property
    def measure(self) -> str:
        """Return what the submission is judged by."""
        return self.verdicts[0].measure if self.verdicts else "loss"

    @property
    def qualities(self) -> list[float]:
        """Return the validation loss, in nats, or the accuracy of each finished examination."""
        return [verdict.quality for verdict in self.finished if verdict.quality is not None]

    @property
    def seconds(self) -> list[float]:
        """Return the training time of each finished examination."""
        return [verdict.train_seconds for verdict in self.finished if verdict.train_seconds is not None]

    @property
    def uneven(self) -> str:
        """Return what is wrong with the training times, of which none may be much longer than another; "" if nothing
        is."""
        times = [of.train_seconds - of.waited_seconds for of in self.finished if of.train_seconds is not None]
        return self.allowed.uneven(times)

    @property
    def remark(self) -> str:
        """Return why somebody has to read the script, "" if there is no reason."""
        return next((verdict.remark for verdict in self.finished if verdict.remark), "")

    @cached_property
    def test(self) -> TargetTest | NotTestable | None:
        """Return the test of the mean against the target, None without a target and where runs are missing.

        There is none of equal values either, such as those of a submission that does not use its seed.
        """
        if self.target is None or self.breach or self.unfinished:
            return None
        try:
            return target_test(self.qualities, self.target, higher_is_better=self.measure == "accuracy")
        except NotTestable as error:
            return error

    @property
    def reason(self) -> str:
        """Return why the target is not reached; empty if it is reached or not tested."""
        if self.target is None:
            missed = (finding.reason for verdict in self.finished for finding in verdict.failed)
            return next(missed, "")  # worse than equal probabilities
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
        """Return OK if the submission is accepted, READ_SCRIPT if its script must be read first, ERROR after a breach,
        INCONCLUSIVE if examinations are undecided, uneven or missing, TARGET_NOT_REACHED if only the target fails."""
        if self.breach:
            return ExitCode.ERROR
        if self.undecided or self.unfinished or self.uneven:
            return ExitCode.INCONCLUSIVE
        if self.reason:
            return ExitCode.TARGET_NOT_REACHED
        return ExitCode.READ_SCRIPT if self.remark else ExitCode.OK

    @property
    def sentence(self) -> str:
        """Return the verdict as one line."""
        where = next((verdict.where for verdict in self.verdicts if verdict.where), "")
        count = len(self.finished)
        runs = f"{count} run{'s' * (count != 1)}"
        measured = f"mean {self.measure} {_mean(self.qualities, 4)} in {_mean(self.seconds, 2)} s of training, {runs}"
        if self.breach:
            others = f"; before: {measured}" if count else ""
            return f"run {self.verdicts.index(self.breach) + 1}: {self.breach.sentence}{others}"
        if self.unfinished:
            return f"unfinished, {count} of {self.planned} runs: {measured}{where}"
        if self.undecided:
            return f"run {self.verdicts.index(self.undecided) + 1}: {self.undecided.sentence}; {measured}"
        if self.uneven:
            return f"undecided: {self.uneven}; {measured}{where}"
        if self.reason:
            target = f"target {self.target:.4f}, " if self.target is not None else ""
            return f"rejected: {target}{measured}: {self.reason}{where}"
        reached = ""
        if test := self._tested:
            reached = f"; target {self.target:.4f} reached with p = {test.p_t:.2g} ({test.p_sign:.2g} by the sign test)"
        if self.remark:
            return f"read the script: {measured}{reached}, but {self.remark}{where}"
        return f"accepted: {measured}{reached}{where}"

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        test = self._tested
        shown = {"accepted": self.exit_code is ExitCode.OK, "train_seconds": self.seconds}
        shown["losses" if self.measure == "loss" else "accuracies"] = self.qualities
        statistics = {"target": self.target, "p_t": test and test.p_t, "p_sign": test and test.p_sign}
        runs = [verdict.as_json() for verdict in self.verdicts]
        return {**shown, **statistics, "verdict": self.sentence, "runs": runs}

    def lines(self, width: int | None) -> list[str]:
        """Return a table of the finished runs, the probes of one that is not accepted, and the verdict."""
        rows = []
        for number, of in enumerate(self.finished, 1):
            numbers = f"{number} {of.quality:.4f} {of.standard_error:.4f} {of.train_seconds:.2f}"
            rows.append([*numbers.split(), "undecided" if of.undecided else "pass"])
        table = Table(["run", self.measure, "standard error", "train s", "probes"], rows).lines(width)
        shown = self.breach or self.undecided
        return [*(table if rows else []), *(shown.lines(width)[:-1] if shown else [""]), self.sentence]


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
        """Return that of the submission, ERROR after a breach by the record, or INCONCLUSIVE if that is undecided or
        uneven."""
        if self.record.breach:
            return ExitCode.ERROR
        unsure = self.record.undecided or self.record.uneven
        return self.submission.exit_code or (ExitCode.INCONCLUSIVE if unsure else ExitCode.OK)

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        portable = self.ratio and self.ratio.portable and [*vars(self.ratio.portable).values()]
        ratio = self.ratio and as_values(self.ratio) | {"verdict": self.ratio.verdict, "portable": portable}
        return {"submission": self.submission.as_json(), "record": self.record.as_json(), "ratio": ratio}

    def lines(self, width: int | None) -> list[str]:
        """Return the tables of both and the comparison."""
        lines = ["the record:", *self.record.lines(width), "", "the submission:", *self.submission.lines(width)]
        return [*lines, "", self.ratio.sentence, self.ratio.portable_text] if self.ratio else lines


def examine_in_turns(
    examine: Callable[[dict[str, bytes]], Verdict],
    submissions: Sequence[dict[str, bytes]],
    verdicts: list[list[Verdict]],
    runs: int,
) -> None:
    """Examine the files of each of the `submissions` `runs` times, and add to its `verdicts`; a breach ends it."""
    turns = [(number, place) for number in range(runs) for place in range(len(submissions))]
    for turn, (number, place) in enumerate(turns, 1):
        of = f" (examination {turn} of {len(turns)})" if len(turns) > 1 else ""
        stdio.stage(f"timedrun referee: training twice, then asking{of}")
        each = place if number % 2 == 0 else -1 - place  # who goes first changes from round to round
        verdicts[each].append(examine(submissions[each]))
        if verdicts[each][-1].exit_code is ExitCode.ERROR:
            return


def _mean(values: list[float], digits: int) -> str:
    """Return the mean with its 95 % interval by Student's t, if there is one of so few values."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if values else "not known"
    return f"{fmean(values):.{digits}f} +- {mean_margin(values):.{digits}f}"
