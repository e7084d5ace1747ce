"""Examination of a submission: train it twice in a sandbox, question what it trained, and judge."""

from __future__ import annotations

import base64
import json
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from judging.ground.errors import UsageError
from referee import contents, prefix, probes, training_time
from referee.probes import LEAKED_NATS, Measured, Probed, Questions
from referee.sandbox import Sandbox, readable
from referee.session import Limits, Session, Violation
from referee.token_files import MOST_IDS, Windows, read, renumbered, shards, windows
from referee.training_time import Allowance, TrainingTime
from referee.verdict import Finding, Verdict

BUSY_LOOKS: Final = 5
BUSY_SECONDS: Final = 0.08
BUSY_SHARE: Final = 0.5
"""Share of looks above which a session that has handed over its weights is still at work."""
DISTANCES: Final = {
    "determinism": "two answers to one question",
    "state": "answers as a session's first and as its last",
    "rows": "a row's answers alone and among other rows",
    "causality": "answers before changed tokens",
}
"""Probe -> answers whose total variation distance it judges."""
WITH: Final = {"real": "", "planted": " (renumbered tokens)"}
FEW_TOKENS: Final = 4
"""Times as many tokens as were asked: a training on fewer is named in the verdict."""
UNCACHED: Final = (
    "the system's files do not fit into half of the free memory: a session can leave notes for a later one by reading "
    "them"
)
UNTRAINED_ROWS: Final = 16
UNTRAINED_NATS: Final = 0.05
"""Nats by which an untrained model may be better than equal probabilities."""


@dataclass(frozen=True)
class Examination:
    """Settings of an examination.

    Attributes:
        vocabulary, context, device, threads: the task, as the submission gets it.
        ranks: processes of a training, as torchrun starts them; 0 for one without torchrun's environment.
        limits: limits of time, memory and size.
        rows: largest number of rows of validation tokens.
        tolerance: largest total variation distance between answers that should be equal.
        margin: nats by which the loss with renumbered tokens may differ; time_ratio: factor by which the time may be
            longer, beyond time_grace seconds.
        prefix: first tokens of the validation text whose loss is reported too, as the speed runs do; 0 for none.
        target: loss to reach, in nats; None for no target.
        fixed: token ids that keep their numbers, such as the one between documents.
        seed: seed of questions, renumbering and of the seeds that the submission gets.
    """

    vocabulary: int
    context: int
    device: str = "cpu"
    threads: int = 1
    ranks: int = 0
    limits: Limits = Limits()
    rows: int = 512
    tolerance: float = 1e-3
    margin: float = 0.05
    time_ratio: float = 1.25
    time_grace: float = 2.0
    prefix: int = 0
    target: float | None = None
    fixed: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """Weights before and after training, and the times of both."""

    untrained: bytearray
    weights: bytearray
    prepare_seconds: float
    time: TrainingTime
    busy: float


def finite(measured: Measured) -> Measured:
    """Return `measured`. Raises Violation if the loss is infinite."""
    if infinite := int(np.isinf(measured.losses).sum()):
        where = f"in {infinite} of {len(measured.losses)} rows"
        text = f"probability 0 for a token that occurred, {where}: the loss is infinite; give every token a small one"
        raise Violation("answers", text)
    return measured


class Referee:
    """Examine submissions on one task; a context manager that holds the sandbox.

    Args:
        train: file or folder of training tokens.
        validation: file or folder of validation tokens, which never enters the sandbox as a file.
        folder: folder for two copies of the training tokens, with their own numbers and renumbered; None for the
            system's. A submission is trained on each; neither form, names nor order tells them apart.
        isolated: see `Sandbox`.

    Raises:
        UsageError: the submission could read the validation data, or would be trained on them; there is no such device.
        SandboxUnavailable: the machine cannot isolate a process.
    """

    def __init__(
        self, settings: Examination, train: Path, validation: Path, folder: Path | None, *, isolated: bool = True
    ) -> None:
        self.settings = settings
        for seen in [Path("/usr"), *readable()]:
            if isolated and validation.resolve().is_relative_to(seen):
                raise UsageError(f"{validation} is in {seen}, which submissions can read; move it. Nothing was run.")
        if settings.vocabulary > MOST_IDS:
            text = f"at most {MOST_IDS:,} can be asked about, since an answer has a number for each id"
            raise UsageError(f"--vocabulary {settings.vocabulary:,}: {text}. Nothing was run.")
        if beyond := [str(token) for token in settings.fixed if token >= settings.vocabulary]:
            text = f"there are {settings.vocabulary} ids, 0 to {settings.vocabulary - 1}. Nothing was run."
            raise UsageError(f"--fixed {' and '.join(beyond)}: {text}")
        self._draw = draw = np.random.default_rng(settings.seed)
        free = np.setdiff1d(np.arange(settings.vocabulary), settings.fixed)
        self.numbers = np.arange(settings.vocabulary)
        self.numbers[free] = draw.permutation(free)
        real, self.validation = shards(train, "train"), shards(validation, "val")
        if both := [shard.path for shard in real if any(shard.path.samefile(other.path) for other in self.validation)]:
            raise UsageError(f"{both[0]} is in the training and in the validation data. Nothing was run.")
        self._windows()  # raises before the copy is made
        numbers = {"real": np.arange(settings.vocabulary), "planted": self.numbers}
        order = draw.permutation(sorted(numbers))
        self._copies = {str(kind): f"copy{number}_" for number, kind in enumerate(order)}
        with tempfile.TemporaryDirectory(prefix="timedrun_referee_", dir=folder) as place:
            data = {name: renumbered(real, numbers[kind], Path(place), name) for kind, name in self._copies.items()}
            limit = settings.limits.work_bytes
            self.sandbox = Sandbox(data, device=settings.device, work_bytes=limit, isolated=isolated)
        self.sandbox.wait()  # without the copies, which the server has open: a referee that is killed leaves none

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
        validation = map(read, self.validation)
        items = limits.literal_items
        finding = contents.examine(files, code_bytes=limits.code_bytes, literal_items=items, validation=validation)
        verdict.findings.append(finding)
        if self.sandbox.isolated and not self.sandbox.cached:
            verdict.findings.append(Finding("sandbox", True, UNCACHED))
        if finding.passed:
            try:
                self._examine(files, verdict)
            except Violation as violation:
                verdict.findings.append(Finding(violation.probe, False, violation.reason))
        return verdict

    def _windows(self) -> Windows:
        settings = self.settings
        return windows(
            self.validation,
            context=settings.context,
            vocabulary=settings.vocabulary,
            count=settings.rows,
            numbers_per_row=1 << 21,
            seed=int(self._draw.integers(1 << 31)),
        )

    def _examine(self, files: dict[str, bytes], verdict: Verdict) -> None:
        names = [*self._copies]
        self._draw.shuffle(names)  # the submission cannot know which of its runs counts
        trained = {name: self._train(files, name, verdict) for name in names}
        real, planted = trained["real"], trained["planted"]
        add = verdict.findings.append
        slowest = max(training.prepare_seconds for training in trained.values())
        add(Finding("preparation", True, f"{slowest:.2f} s before the clock", {"seconds": slowest}))
        add(Finding("training", True, f"{real.time.seconds:.2f} s", {"seconds": real.time.seconds}))
        busy = max(training.busy for training in trained.values())
        text = f"at work at {busy:.0%} of the looks after the weights were received, of {BUSY_SHARE:.0%} allowed"
        add(Finding("hand-over", busy <= BUSY_SHARE, text, {"share": busy}))

        rows = self._windows()  # of each examination: the error of this sample is in the spread of several
        batch = probes.question_rows(rows.positions.shape[1], self.settings.vocabulary)
        cuts = probes.draw_cuts(rows, probes.CUTS, self._draw)
        of_kind = {"real": rows, "planted": rows.renumbered(self.numbers)}
        probed: dict[str, Probed] = {}
        earlier = len(verdict.findings)
        for name in names:
            if verdict.failed:  # a breach ends the examination
                return
            session = partial(self._questions, files, trained[name].weights, verdict)
            probed[name] = probes.probe(session, of_kind[name], cuts, batch)
            finite(probed[name].measured)
            verdict.findings[earlier:] = self._held(probed, 0.1 * real.time.seconds)
        few = Windows(rows.rows[:UNTRAINED_ROWS], rows.positions[:UNTRAINED_ROWS], rows.futures[:UNTRAINED_ROWS])
        with self._questions(files, trained[names[0]].untrained, verdict) as questions:
            untrained = probes.measure(questions, few, cuts[:, :UNTRAINED_ROWS], batch).loss
        uniform = math.log(self.settings.vocabulary)
        text = f"loss {untrained:.4f} before training; equal probabilities have {uniform:.4f}"
        add(Finding("untrained", untrained >= uniform - UNTRAINED_NATS, text, {"loss": untrained}))
        if verdict.failed:
            return
        ours, theirs = probed["real"].measured, probed["planted"].measured
        add(Finding("answers", True, f"{len(ours.losses)} rows, loss {ours.loss:.4f}", {"loss": ours.loss}))
        add(Finding("normalisation", True, "computed by the referee"))
        self._compare(ours, theirs, verdict)

        def again() -> tuple[TrainingTime, TrainingTime]:
            self._draw.shuffle(names)
            times = {name: self._train(files, name, verdict).time for name in names}
            return times["planted"], times["real"]

        allowance = Allowance(self.settings.time_ratio, self.settings.time_grace)
        add(training_time.judged(allowance, (planted.time, real.time), again))
        # The result is that of the run in which nothing cached could help; what it does when it is loaded is training.
        verdict.train_seconds, verdict.loss = planted.time.seconds + probed["planted"].late_seconds, theirs.loss
        tokens = planted.time.seconds / (3 * probed["planted"].row_seconds) * self.settings.context
        if tokens < FEW_TOKENS * rows.rows.size:
            verdict.remark = (
                "before the hand-over it trained for so short a time that, at the speed of its answers, about "
                f"{tokens:,.0f} tokens can have passed forward and back: a table of counts, or one that was brought "
                "along; read the script"
            )
        if self.settings.prefix:
            session = partial(self._questions, files, planted.weights, verdict)
            all_rows = self.numbers[prefix.first_rows(self.validation, self.settings.context, self.settings.prefix)]
            with session() as questions:
                claimed = prefix.losses(questions, all_rows, batch)
            chosen, checked = prefix.sample(all_rows, of_kind["planted"], self._draw)
            full = probes.probe(session, checked, probes.draw_cuts(checked, probes.CUTS, self._draw), batch)
            held = self._held({"planted": full}, 0.1 * real.time.seconds)
            verdict.findings += [finding for finding in held if not finding.passed]
            add(prefix.judged(claimed, chosen, checked, full.measured))
        verdict.standard_error = float(theirs.losses.std(ddof=1) / math.sqrt(len(theirs.losses)))
        if (target := self.settings.target) is not None:
            text = f"loss {verdict.loss:.4f} +- {verdict.standard_error:.4f}, target {target:.4f}"
            add(Finding("target", verdict.loss <= target, text, {"loss": verdict.loss}))
        elif verdict.loss >= uniform:
            text = f"loss {verdict.loss:.4f}, no better than before training: equal probabilities have {uniform:.4f}"
            add(Finding("target", False, text, {"loss": verdict.loss}))

    def _held(self, probed: dict[str, Probed], more_seconds: float) -> list[Finding]:
        """Return the findings on the answers of each training's weights, of each probe the worst; late work may take
        `more_seconds` beyond its limit."""
        tolerance, findings = self.settings.tolerance, []
        kinds = [kind for kind in WITH if kind in probed]
        for name, what in DISTANCES.items():
            kind = max(kinds, key=lambda kind: probed[kind].distances[name])
            value = probed[kind].distances[name]
            text = f"{what} differ by {value:.2g} in total variation{WITH[kind]}, of {tolerance:g} allowed"
            findings.append(Finding(name, value <= tolerance, text, {"distance": value, "tolerance": tolerance}))
        kind = max(kinds, key=lambda kind: probed[kind].gain)
        gain = probed[kind].gain
        text = f"sight of the next token lowers the loss by {gain:.2g} nats{WITH[kind]}, of {LEAKED_NATS} allowed"
        findings.append(Finding("causality", gain <= LEAKED_NATS, text, {"gain_nats": gain}))
        late = max(one.late_seconds for one in probed.values())
        allowed = self.settings.limits.late_seconds + more_seconds
        text = f"{late:.2f} s to the first answer, beyond a later answer's time, of {allowed:.2f} s allowed"
        return [*findings, Finding("late work", late <= allowed, text, {"seconds": late})]

    def _compare(self, ours: Measured, theirs: Measured, verdict: Verdict) -> None:
        """Add the finding on the loss with renumbered tokens."""
        more = theirs.loss - ours.loss
        noise = float(np.std(theirs.losses - ours.losses, ddof=1)) / math.sqrt(len(ours.losses))
        allowed = self.settings.margin + 3 * noise
        text = f"loss {theirs.loss:.4f} with renumbered tokens: {more:+.4f}, of {allowed:.4f} allowed"
        passed = abs(more) <= allowed
        verdict.findings.append(Finding("planted data", passed, text, {"more_nats": more, "allowed": allowed}))

    @contextmanager
    def _session(self, files: dict[str, bytes], role: str, verdict: Verdict) -> Iterator[Session]:
        settings = self.settings
        limits = settings.limits
        order: dict[str, Any] = {"role": role, "threads": settings.threads, "ranks": settings.ranks}
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
            load = session.load()
            released = time.monotonic()
            self.sandbox.give_data(self._copies[name])
            _, weights = session.wait("trained", limits.budget_seconds, limits.weights_bytes)
            received = time.monotonic()
            session.stage = "hand-over"
            duration = TrainingTime.between(load, session.load(), received - released)
            busy = session.busy_share(BUSY_LOOKS, BUSY_SECONDS)
        return Trained(untrained, weights, released - started, duration, busy)

    @contextmanager
    def _questions(self, files: dict[str, bytes], weights: bytearray, verdict: Verdict) -> Iterator[Questions]:
        with self._session(files, "answer", verdict) as session:
            yield Questions(session, self.settings.limits, weights, self.settings.vocabulary)
