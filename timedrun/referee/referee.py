"""Examination of a submission: train it twice in a sandbox, question what it trained, and judge."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from timedrun.errors import UsageError
from timedrun.referee import contents, probes
from timedrun.referee.sandbox import Sandbox, readable
from timedrun.referee.session import Limits, Session, Violation
from timedrun.referee.token_files import Windows, renumbered, shards, windows
from timedrun.referee.verdict import Finding, Verdict

BUSY_LOOKS: Final = 5
BUSY_SECONDS: Final = 0.08
BUSY_SHARE: Final = 0.5
"""Share of looks above which a session that has handed over its weights is still at work."""
UNTRAINED_ROWS: Final = 16
UNTRAINED_NATS: Final = 0.05
"""Nats by which an untrained model may be better than equal probabilities."""


@dataclass(frozen=True)
class Examination:
    """Settings of an examination.

    Attributes:
        vocabulary, context, device, threads: the task, as the submission gets it.
        limits: limits of time, memory and size.
        rows: largest number of rows of validation tokens.
        tolerance: largest total variation distance between answers that should be equal.
        margin: nats by which the loss with renumbered tokens may be higher; time_ratio: the same of the time, beyond
            time_grace seconds.
        target: loss to reach, in nats; None for no target.
        fixed: token ids that keep their numbers, such as the one between documents.
        seed: seed of questions, renumbering and of the seeds that the submission gets.
    """

    vocabulary: int
    context: int
    device: str = "cpu"
    threads: int = 1
    limits: Limits = Limits()
    rows: int = 512
    tolerance: float = 1e-3
    margin: float = 0.05
    time_ratio: float = 1.25
    time_grace: float = 2.0
    target: float | None = None
    fixed: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """Weights before and after training, and the time from the data's release to the receipt of the weights."""

    untrained: bytearray
    weights: bytearray
    prepare_seconds: float
    train_seconds: float
    busy: float


class Referee:
    """Examine submissions on one task; a context manager that holds the sandbox.

    Args:
        train: file or folder of training tokens.
        validation: file or folder of validation tokens, which never enters the sandbox as a file.
        folder: folder for the renumbered copy of the training tokens, as large as they are.
        isolated: see `Sandbox`.

    Raises:
        UsageError: the submission could read the validation data.
        SandboxUnavailable: the machine cannot isolate a process.
    """

    def __init__(
        self, settings: Examination, train: Path, validation: Path, folder: Path, *, isolated: bool = True
    ) -> None:
        self.settings = settings
        for seen in [Path("/usr"), *readable()]:
            if isolated and validation.resolve().is_relative_to(seen):
                raise UsageError(f"{validation} is in {seen}, which submissions can read; move it. Nothing was run.")
        draw = np.random.default_rng(settings.seed)
        free = np.setdiff1d(np.arange(settings.vocabulary), settings.fixed)
        self.numbers: NDArray[np.int64] = np.arange(settings.vocabulary)
        self.numbers[free] = draw.permutation(free)
        real = shards(train)
        self.windows = windows(
            shards(validation),
            context=settings.context,
            vocabulary=settings.vocabulary,
            count=settings.rows,
            numbers_per_row=1 << 21,
            seed=settings.seed,
        )
        self.batch = probes.question_rows(self.windows.positions.shape[1], settings.vocabulary)
        data = {"real": real, "planted": renumbered(real, self.numbers, folder, "planted")}
        self._draw = draw
        self.sandbox = Sandbox(data, work_bytes=settings.limits.work_bytes, isolated=isolated)
        for one in data["planted"]:  # the server has them open; a referee that is killed leaves no copy
            one.path.unlink()

    def __enter__(self) -> Referee:
        """Return the referee."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the sandbox."""
        self.sandbox.__exit__()

    def examine(self, files: dict[str, bytes]) -> Verdict:
        """Examine a submission's files (`contents.read`); a breach of a rule that leaves nothing to ask ends it."""
        limits = self.settings.limits
        verdict = Verdict(contents.digest(files), self.sandbox.isolated)
        found = contents.examine(files, code_bytes=limits.code_bytes, literal_items=limits.literal_items)
        verdict.findings.append(found)
        if found.passed:
            try:
                self._examine(files, verdict)
            except Violation as violation:
                verdict.findings.append(Finding(violation.probe, False, violation.reason))
        return verdict

    def _examine(self, files: dict[str, bytes], verdict: Verdict) -> None:
        names = ["real", "planted"]
        self._draw.shuffle(names)  # the submission cannot know which of its runs counts
        trained = {name: self._train(files, name, verdict) for name in names}
        real, planted = trained["real"], trained["planted"]
        verdict.train_seconds = real.train_seconds
        add = verdict.findings.append
        slowest = max(one.prepare_seconds for one in trained.values())
        add(Finding("preparation", True, f"{slowest:.2f} s before the clock", {"seconds": slowest}))
        add(Finding("training", True, f"{real.train_seconds:.2f} s", {"seconds": real.train_seconds}))
        busy = max(one.busy for one in trained.values())
        text = f"at work at {busy:.0%} of the looks after the weights were received, of {BUSY_SHARE:.0%} allowed"
        add(Finding("hand-over", busy <= BUSY_SHARE, text, {"share": busy}))

        measured = self._measure(files, real.weights, self.windows, verdict)
        verdict.loss = measured.loss
        verdict.standard_error = float(measured.losses.std(ddof=1) / math.sqrt(len(measured.losses)))
        add(Finding("answers", True, f"{len(measured.losses)} rows, loss {measured.loss:.4f}", {"loss": measured.loss}))
        add(Finding("normalisation", True, "computed by the referee"))
        late = measured.first_seconds - measured.second_seconds
        allowed = self.settings.limits.late_seconds + 0.1 * real.train_seconds
        text = f"{late:.2f} s to the first answer, beyond a later answer's time, of {allowed:.2f} s allowed"
        add(Finding("late work", late <= allowed, text, {"seconds": late}))
        add(probes.judged("determinism", measured.repeated, self.settings.tolerance, "two answers to one question"))
        probe = probes.Probe(
            self.settings.limits,
            real.weights,
            self.windows,
            measured,
            vocabulary=self.settings.vocabulary,
            tolerance=self.settings.tolerance,
            seed=int(self._draw.integers(1 << 31)),
        )
        for questions in (probe.repeat, probe.change):
            with self._session(files, "answer", verdict) as session:
                verdict.findings += questions(session)
        few = Windows(self.windows.rows[:UNTRAINED_ROWS], self.windows.positions[:UNTRAINED_ROWS])
        untrained = self._measure(files, real.untrained, few, verdict).loss
        uniform = math.log(self.settings.vocabulary)
        text = f"loss {untrained:.4f} before training; equal probabilities have {uniform:.4f}"
        add(Finding("untrained", untrained >= uniform - UNTRAINED_NATS, text, {"loss": untrained}))
        changed = Windows(self.numbers[self.windows.rows], self.windows.positions)
        self._compare(measured, self._measure(files, planted.weights, changed, verdict), real, planted, verdict)
        if (target := self.settings.target) is not None:
            text = f"loss {measured.loss:.4f} +- {verdict.standard_error:.4f}, target {target:.4f}"
            add(Finding("target", measured.loss <= target, text, {"loss": measured.loss}))

    def _compare(
        self, ours: probes.Measured, theirs: probes.Measured, real: Trained, planted: Trained, verdict: Verdict
    ) -> None:
        """Add the findings on loss and time with renumbered tokens."""
        more = theirs.loss - ours.loss
        noise = float(np.std(theirs.losses - ours.losses, ddof=1)) / math.sqrt(len(ours.losses))
        allowed = self.settings.margin + 3 * noise
        text = f"loss {theirs.loss:.4f} with renumbered tokens: {more:+.4f}, of {allowed:.4f} allowed"
        verdict.findings.append(Finding("planted data", more <= allowed, text, {"more_nats": more, "allowed": allowed}))
        limit = real.train_seconds * self.settings.time_ratio + self.settings.time_grace
        text = f"{planted.train_seconds:.2f} s with renumbered tokens, {real.train_seconds:.2f} s without"
        passed = planted.train_seconds <= limit
        verdict.findings.append(Finding("planted data", passed, text, {"seconds": planted.train_seconds}))

    @contextmanager
    def _session(self, files: dict[str, bytes], role: str, verdict: Verdict) -> Iterator[Session]:
        settings = self.settings
        limits = settings.limits
        order: dict[str, Any] = {"role": role, "threads": settings.threads}
        seed = int(self._draw.integers(1 << 31))
        task = {"vocabulary": settings.vocabulary, "context": settings.context, "device": settings.device, "seed": seed}
        order["task"] = task | {"budget_seconds": limits.budget_seconds}
        order["limits"] = asdict(limits)
        text = json.dumps({name: base64.b64encode(text).decode() for name, text in files.items()}).encode()
        with Session(self.sandbox, limits, (order, text)) as session:
            try:
                yield session
            finally:
                session.drain()
                verdict.output = session.output.decode(errors="replace") or verdict.output

    def _train(self, files: dict[str, bytes], name: str, verdict: Verdict) -> Trained:
        """Run one training; its time ends with the last byte of its weights."""
        limits = self.settings.limits
        started = time.monotonic()
        with self._session(files, "train", verdict) as session:
            _, untrained = session.wait("built", limits.prepare_seconds, limits.weights_bytes)
            session.stage = "training"
            released = time.monotonic()
            self.sandbox.give_data(name)
            _, weights = session.wait("trained", limits.budget_seconds, limits.weights_bytes)
            received = time.monotonic()
            session.stage = "hand-over"
            busy = session.busy_share(BUSY_LOOKS, BUSY_SECONDS)
        return Trained(untrained, weights, released - started, received - released, busy)

    def _measure(self, files: dict[str, bytes], weights: bytearray, rows: Windows, verdict: Verdict) -> probes.Measured:
        with self._session(files, "answer", verdict) as session:
            session.stage = "answers"
            return probes.measure(
                session, self.settings.limits, weights, rows, vocabulary=self.settings.vocabulary, batch=self.batch
            )
