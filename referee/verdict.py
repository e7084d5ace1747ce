"""Verdict on a submission: the finding of every probe, with its reason and numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from judging.ground.errors import ExitCode
from judging.pages.table import Table

PROBES: Final = {
    "contents": "the files are small and hold no data",
    "preparation": "imports and build succeed within their limits, before the clock",
    "training": "training succeeds within its limits",
    "hand-over": "no work goes on after the weights are handed over",
    "untrained": "before training, the model does not know the text",
    "answers": "answers have the agreed form and finite numbers, and come in time",
    "normalisation": "the probabilities of an answer sum to 1",
    "late work": "the model answers without training first",
    "determinism": "the same question has the same answer",
    "state": "earlier questions do not change later answers",
    "rows": "other rows of a question do not change a row's answers",
    "causality": "later tokens do not change earlier answers",
    "order": "other images, before or beside it, do not change an image's answer",
    "altered images": "images with a little noise are known as well",
    "prefix": "the loss over the beginning of the text is what the referee computes of a part",
    "same quality": "trained on data in which every token has another number, or images are disguised, it is as good",
    "same time": "training on such data takes as long as on the true ones",
    "sandbox": "no session can leave a note for a later one",
    "target": "the validation data reach the target",
}
"""Probes and the statement that each of them holds a submission to, in the order of the report."""
NOT_OF: Final = {"loss": {"order", "altered images"}, "accuracy": {"causality"}}
"""What a submission is judged by -> probes that it does not have; "accuracy" is that of images."""
NOT_ISOLATED: Final = "; NOT ISOLATED: the code had all rights of the user, and could see all data"


@dataclass(frozen=True)
class Finding:
    """Finding of one probe; `undecided` if neither pass nor breach was shown."""

    probe: str
    passed: bool
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)
    undecided: bool = False


@dataclass
class Verdict:
    """Verdict of the referee.

    Attributes:
        digest: SHA-256 of the submission's files.
        isolated: True if the code ran in the sandbox.
        findings: findings of the probes that were run.
        train_seconds: from the data's release to the receipt of the weights, and late work; None if that was not
            reached.
        loss: mean loss of the validation data that were asked about, in nats; accuracy: of images; standard_error: of
            the one that is the measure.
        output: last bytes that the submission printed.
        remark: why somebody has to read the script before it is accepted; empty if there is no reason.
        waited_seconds: waits of the training that other processes explain.
        open_channel: True if the kernel's memory of names could not be dropped between sessions.
        measure: "loss", of text, or "accuracy", of images.
    """

    digest: str
    isolated: bool
    findings: list[Finding] = field(default_factory=list)
    train_seconds: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    standard_error: float | None = None
    output: str = ""
    remark: str = ""
    measure: str = "loss"
    waited_seconds: float = 0.0
    open_channel: bool = False

    @property
    def quality(self) -> float | None:
        """Return the loss or the accuracy."""
        return self.loss if self.measure == "loss" else self.accuracy

    @property
    def failed(self) -> list[Finding]:
        """Return the findings against the submission."""
        return [finding for finding in self.findings if not finding.passed and not finding.undecided]

    @property
    def undecided(self) -> Finding | None:
        """Return a finding that is neither for nor against the submission, if there is one."""
        return next((finding for finding in self.findings if finding.undecided), None)

    @property
    def exit_code(self) -> ExitCode:
        """Return OK if the submission is accepted, READ_SCRIPT if its script must be read first, INCONCLUSIVE if a
        finding is undecided and nothing but the target fails, TARGET_NOT_REACHED if only the target fails, else
        ERROR."""
        if any(finding.probe != "target" for finding in self.failed):
            return ExitCode.ERROR
        if self.undecided:
            return ExitCode.INCONCLUSIVE
        if self.failed:
            return ExitCode.TARGET_NOT_REACHED
        return ExitCode.READ_SCRIPT if self.remark else ExitCode.OK

    @property
    def where(self) -> str:
        """Return what the sandbox left open, to be put after a verdict."""
        channel = "; notes between sessions are not closed here" * self.open_channel
        return channel if self.isolated else NOT_ISOLATED

    @property
    def sentence(self) -> str:
        """Return the verdict as one line."""
        where = self.where
        if self.exit_code is ExitCode.INCONCLUSIVE and (finding := self.undecided):
            return f"undecided: {finding.probe}: {finding.reason}{where}"
        if self.failed:
            if self.exit_code is ExitCode.TARGET_NOT_REACHED:
                where = f": {self.failed[0].reason}{where}"
            return f"rejected: {', '.join(dict.fromkeys(finding.probe for finding in self.failed))}{where}"
        quality = f"{self.measure} {self.quality:.4f} +- {self.standard_error:.4f}"
        result = f"{quality} in {self.train_seconds:.2f} s of training"
        return f"read the script: {result}, but {self.remark}{where}" if self.remark else f"accepted: {result}{where}"

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        findings = [asdict(finding) for finding in self.findings]
        shown = {"accepted": self.exit_code is ExitCode.OK, "isolated": self.isolated, "submission_sha256": self.digest}
        measured = {"train_seconds": self.train_seconds, "loss": self.loss, "accuracy": self.accuracy}
        measured |= {"standard_error": self.standard_error}
        return {**shown, **measured, "findings": findings, "remark": self.remark, "output": self.output}

    def lines(self, width: int | None) -> list[str]:
        """Return a table of all probes and the verdict."""
        of = {name: [finding for finding in self.findings if finding.probe == name] for name in PROBES}
        rows = []
        for name, statement in PROBES.items():
            failed = [finding for finding in of[name] if not finding.passed]
            if of[name] or name not in {"sandbox", "target", "prefix"} | NOT_OF[self.measure]:
                breach = any(not finding.undecided for finding in failed)
                state = "FAIL" if breach else "undecided" if failed else "pass" if of[name] else "not run"
                reasons = "; ".join(finding.reason for finding in failed or of[name]) or "the examination ended before"
                rows.append([name, state, f"{statement}: {reasons}"])
        return [*Table(["probe", "result", "what must hold, and what was found"], rows).lines(width), "", self.sentence]
