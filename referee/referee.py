"""Examination of a submission: train it twice in a sandbox, question what it trained, and judge."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from judging.ground.errors import ExitCode, TimedrunError, UsageError
from referee import contents, prefix, probes, training_time
from referee.images import ImageFiles, Images
from referee.probes import LEAKED, Measured, Probed, Questions
from referee.sandbox import Sandbox, WatchedFolder, readable
from referee.session import Limits, Session, Violation
from referee.token_files import Text, Windows, read
from referee.training_time import Allowance, TrainingTime
from referee.verdict import Finding, Verdict

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
BUSY_LOOKS: Final = 5
BUSY_SECONDS: Final = 0.08
BUSY_ROUNDS: Final = 25
"""Rounds of looks: ranks and threads take a while to end, the longer the busier the machine is."""
BUSY_SHARE: Final = 0.5
"""Share of looks above which a session that has handed over its weights is still at work."""
DISTANCES: Final = {
    "determinism": "two answers to one question",
    "state": "answers as a session's first and as its last",
    "rows": "a row's answers alone and among other rows",
    "causality": "answers before changed tokens",
    "order": "answers about images in another order",
}
"""Probe -> answers whose total variation distance it judges."""
FEW: Final = 4
"""Times as many tokens or images as were asked: a training on fewer is named in the verdict."""
FORGOTTEN: Final = "what the kernel remembers of names and files was dropped before each session"
NOT_FORGOTTEN: Final = (
    "not closed here: this user may not make the kernel forget which names a session looked up, which a later one can "
    "tell by the time of its own look"
)
UNCACHED: Final = (
    "; the system's files do not fit into half of the free memory, so that the same is true of reading them"
)
SIZES: Final = 2, 1 << 20
"""Times the size of the untrained model, and bytes, that trained weights may have; numbers may become wider."""
UNTRAINED_ROWS: Final = 16
UNTRAINED_NATS: Final = 0.05
UNTRAINED_ACCURACY: Final = 0.15
"""By how much an untrained model may be better than equal probabilities."""


@dataclass(frozen=True)
class Examination:
    """Settings of an examination.

    Attributes:
        vocabulary, context, classes, device, threads: the task, as the submission gets it; classes are those of images,
            and 0 for text, which has the other two.
        ranks: processes of a training, as torchrun starts them; 0 for one without torchrun's environment.
        limits: limits of time, memory and size.
        rows: largest number of rows of validation tokens, or of images.
        tolerance: largest total variation distance between answers that should be equal.
        margin: nats, or share of the images, by which the loss with renumbered tokens or the accuracy on disguised or
            altered images may differ; time_ratio: factor by which the time may be longer, beyond time_grace seconds.
        prefix: first tokens of the validation text whose loss is reported too, as the speed runs do; 0 for none.
        target: loss to reach, in nats, or accuracy; None for no target.
        fixed: token ids that keep their numbers, such as the one between documents.
        seed: seed of all that is drawn; a submission that knew it would know its questions.
    """

    vocabulary: int = 0
    context: int = 0
    classes: int = 0
    device: str = "cpu"
    threads: int = 1
    ranks: int = 0
    limits: Limits = Limits()
    rows: int = 512
    tolerance: float = 1e-3
    margin: float = 0.05
    time_ratio: float = Allowance.ratio
    time_grace: float = Allowance.grace
    prefix: int = 0
    target: float | None = None
    fixed: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError unless the task is one, of text or of images."""
        of_text = [self.vocabulary, self.context, self.prefix, self.fixed]
        if any(of_text) if self.classes else not all(of_text[:2]):
            text = "name --classes, of images, or --vocabulary and --context, of text, to which --prefix and --fixed"
            raise UsageError(f"{text} belong. Nothing was run.")
        if self.prefix and self.prefix < self.context:
            text = f"--prefix {self.prefix}: no whole row of --context {self.context}"
            raise UsageError(f"{text}; name as many tokens or more. Nothing was run.")


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


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise TimedrunError on the first signal of `ENDING`, so that processes and folders are removed, and ignore later
    ones; a signal that is ignored from the start, as nohup(1) has it, stays so."""

    def end(number: int, _: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        error = TimedrunError(
            f"ended by {signal.Signals(number).name}; the submission's processes and files were removed"
        )
        error.exit_code = ExitCode(128 + number)
        raise error

    before = {number: now for number in ENDING if (now := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Referee(AbstractContextManager["Referee"]):
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
        self._compiled = b""
        # A submission that finds out what the seeds it is given come from would find nothing else.
        draw, self._task_seeds = map(np.random.default_rng, np.random.SeedSequence(settings.seed).spawn(2))
        self._draw = draw
        self.data: Text | ImageFiles = (
            ImageFiles(train, validation, settings.classes, settings.rows, draw)
            if settings.classes
            else Text(train, validation, settings.vocabulary, settings.context, settings.rows, draw, settings.fixed)
        )
        hidden = [shard.path for shard in self.data.validation]
        for path in [validation, *hidden] if isolated else ():
            for seen in [Path("/usr"), *readable()]:
                if path.resolve().is_relative_to(seen):
                    raise UsageError(f"{path} is in {seen}, which submissions can read; move it. Nothing was run.")
        if both := [shard.path for shard in self.data.train if any(map(shard.path.samefile, hidden))]:
            raise UsageError(f"{both[0]} is in the training and in the validation data. Nothing was run.")
        order = draw.permutation(["planted", "real"])
        self._copies = {str(kind): f"copy{number}_" for number, kind in enumerate(order)}
        with closing(WatchedFolder(folder)) as place:
            of = Path(place.name)
            data = {name: self.data.copies(of, name, planted=kind == "planted") for kind, name in self._copies.items()}
            for shard in (shard for shards in data.values() for shard in shards):
                with shard.path.open("rb") as copy:  # or a session's own fsync would leave a trace
                    os.fsync(copy)
            limit = settings.limits.work_bytes
            self.sandbox = Sandbox(data, device=settings.device, work_bytes=limit, isolated=isolated)
        self.sandbox.wait()  # without the copies, which the server has open: a referee that is killed leaves none

    def __exit__(self, *_: object) -> None:
        """End the sandbox."""
        self.sandbox.close()

    def examine(self, files: dict[str, bytes]) -> Verdict:
        """Examine a submission's files (`contents.read`); a breach of a rule that leaves nothing to ask ends it."""
        limits = self.settings.limits
        measure = self.data.measure
        verdict = Verdict(contents.digest(files), self.sandbox.isolated, measure=measure)
        known = map(read, self.data.validation) if isinstance(self.data, Text) else ()
        most = {"code_bytes": limits.code_bytes, "literal_items": limits.literal_items}
        finding = contents.examine(files, **most, validation=known, vocabulary=self.data.choices, measure=measure)
        verdict.findings.append(finding)
        if self.sandbox.isolated:
            text = FORGOTTEN if self.sandbox.forgets else NOT_FORGOTTEN + UNCACHED * (not self.sandbox.cached)
            verdict.open_channel = not self.sandbox.forgets
            verdict.findings.append(Finding("sandbox", True, text))
        if finding.passed:
            if any(b"compile" in text for text in files.values()):
                self.sandbox.load_compiler()
            try:
                self._examine(files, verdict)
            except Violation as violation:
                verdict.findings.append(Finding(violation.probe, False, violation.reason))
        return verdict

    def _examine(self, files: dict[str, bytes], verdict: Verdict) -> None:
        measure, self._compiled = self.data.measure, b""  # of this submission alone
        names = [*self._copies]
        self._draw.shuffle(names)  # the submission cannot know which of its runs counts
        trained = {name: self._train(files, name, verdict) for name in names}
        real, planted = trained["real"], trained["planted"]
        add = verdict.findings.append
        slowest = max(training.prepare_seconds for training in trained.values())
        add(Finding("preparation", True, f"{slowest:.2f} s before the clock", {"seconds": slowest}))
        add(Finding("training", True, f"{real.time.seconds:.2f} s", {"seconds": real.time.seconds}))
        busy = max(training.busy for training in trained.values())
        text = f"at work at {busy:.0%} of the looks after the weights had arrived, of {BUSY_SHARE:.0%} allowed"
        add(Finding("hand-over", busy <= BUSY_SHARE, text, {"share": busy}))

        of_kind = self.data.questions(self._draw)  # anew: the error of this sample is in the spread of several
        rows = of_kind["real"]
        most = (1 << 24) // (rows.positions.shape[1] * self.data.choices)  # rows whose answer has 2^24 numbers
        batch = max(4, min(probes.PROBED_ROWS, most))
        cuts = {name: probes.draw_cuts(rows, probes.CUTS, self._draw) for name in names}  # a rule may suit one of them
        probed: dict[str, Probed] = {}
        earlier = len(verdict.findings)
        for name in names:
            if verdict.failed:  # a breach ends the examination
                return
            session = partial(self._questions, files, trained[name].weights, verdict)
            probed[name] = probes.probe(session, of_kind[name], cuts[name], batch)
            if measure == "loss":
                finite(probed[name].measured)
            verdict.findings[earlier:] = self._held(probed, 0.1 * real.time.seconds)
        few = rows.first(UNTRAINED_ROWS)
        uniform = math.log(self.data.choices)
        chance = self.data.commonest if isinstance(self.data, ImageFiles) else 1 / self.data.choices
        with self._questions(files, trained[names[0]].untrained, verdict) as questions:
            untrained = probes.measure(questions, few, cuts[names[0]][:, : len(few.inputs)], batch)
        text = f"loss {untrained.loss:.4f} before training; equal probabilities have {uniform:.4f}"
        passed = untrained.loss >= uniform - UNTRAINED_NATS
        if measure == "accuracy":
            passed &= (accuracy := float(untrained.hits.mean())) <= chance + UNTRAINED_ACCURACY
            text += f"; accuracy {accuracy:.4f}, of {chance + UNTRAINED_ACCURACY:.4f} allowed"
        add(Finding("untrained", passed, text, {"loss": untrained.loss}))
        if verdict.failed:
            return
        ours, theirs = probed["real"].measured, probed["planted"].measured
        text, numbers = f"{len(ours.losses)} rows, loss {ours.loss:.4f}", {"loss": ours.loss}
        if isinstance(rows, Images):
            numbers |= {"known": float(rows.known.sum()), "accuracy_of_others": float(theirs.hits[~rows.known].mean())}
            text = f"{len(ours.hits)} images, accuracy {ours.hits.mean():.4f}; {rows.known.sum()} have a near-duplicate"
            text += f" in training; disguised, the others have {numbers['accuracy_of_others']:.4f}"
        add(Finding("answers", True, text, numbers))
        add(Finding("normalisation", True, "computed by the referee"))
        add(self._near(ours, theirs, "same quality", f"with {self.data.changed}"))

        def again() -> tuple[TrainingTime, TrainingTime]:
            self._draw.shuffle(names)
            times = {name: self._train(files, name, verdict).time for name in names}
            return times["planted"], times["real"]

        allowance = Allowance(self.settings.time_ratio, self.settings.time_grace)
        add(training_time.judged(allowance, (planted.time, real.time), again, self.data.changed))
        # The result is that of the run in which nothing cached could help; what it does when it is loaded is training.
        verdict.train_seconds, verdict.loss = planted.time.seconds + probed["planted"].late_seconds, theirs.loss
        verdict.waited_seconds = planted.time.delay
        trained_on = planted.time.seconds / (3 * probed["planted"].row_seconds)
        if trained_on < FEW * len(rows.inputs):
            verdict.remark = (
                "before the hand-over it trained for so short a time that, at the speed of its answers, about "
                f"{trained_on * self.data.units:,.0f} {self.data.unit} can have passed forward and back: it may be a "
                "table of counts, or one that was brought along, or answer more slowly than it learns"
            )
        if self.settings.prefix and isinstance(self.data, Text) and isinstance(windows := of_kind["planted"], Windows):
            session = partial(self._questions, files, planted.weights, verdict)
            first = prefix.first_rows(self.data.validation, self.data.units, self.settings.prefix)
            all_rows = self.data.numbers[first]
            with session() as questions:
                claimed = prefix.claims(questions, all_rows, batch)
            chosen, checked = prefix.sample(all_rows, windows, self._draw)
            full = probes.probe(session, checked, probes.draw_cuts(checked, probes.CUTS, self._draw), batch)
            held = self._held({"planted": full}, 0.1 * real.time.seconds)
            verdict.findings += [finding for finding in held if not finding.passed]
            add(prefix.judged(claimed, chosen, checked.positions, full.measured))
        quality, least, sign, without = verdict.loss, uniform, 1, "equal probabilities have"
        if measure == "accuracy":
            quality = verdict.accuracy = float(theirs.hits.mean())
            least, sign, without = chance, -1, "the commonest class has"
        verdict.standard_error = float(theirs.of(measure).std(ddof=1) / math.sqrt(len(theirs.losses)))
        if (target := self.settings.target) is not None:
            text = f"{measure} {quality:.4f} +- {verdict.standard_error:.4f}, target {target:.4f}"
            add(Finding("target", sign * quality <= sign * target, text, {measure: quality}))
        elif sign * quality >= sign * least:
            text = f"{measure} {quality:.4f}, no better than before training: {without} {least:.4f}"
            add(Finding("target", False, text, {measure: quality}))

    def _held(self, probed: dict[str, Probed], more_seconds: float) -> list[Finding]:
        """Return the findings on the answers of each training's weights, of each probe the worst; late work may take
        `more_seconds` beyond its limit."""
        tolerance, findings = self.settings.tolerance, []
        which = {"real": "", "planted": f" ({self.data.changed})"}
        kinds = [kind for kind in which if kind in probed]
        for name in probed[kinds[0]].distances:
            kind = max(kinds, key=lambda kind: probed[kind].distances[name])
            value = probed[kind].distances[name]
            text = f"{DISTANCES[name]} differ by {value:.2g} of probability{which[kind]}, of {tolerance:g} allowed"
            findings.append(Finding(name, value <= tolerance, text, {"distance": value, "tolerance": tolerance}))
        kind = max(kinds, key=lambda kind: probed[kind].gain)
        gain = probed[kind].gain
        name, text = "causality", f"where it can see the next token, its loss is lower by {gain:.2g} nats"
        if self.data.measure == "accuracy":
            name, text = "order", f"{gain:.2%} of the images have another class in another order"
        allowed = LEAKED[self.data.measure]
        text += f"{which[kind]}, of {allowed} allowed"
        findings.append(Finding(name, gain <= allowed, text, {f"gain_{self.data.scale}": gain}))
        for kind, of in probed.items():
            if of.altered is not None:
                findings.append(
                    self._near(of.measured, of.altered, "altered images", f"of altered images{which[kind]}")
                )
        late = max(one.late_seconds for one in probed.values())
        allowed = self.settings.limits.late_seconds + more_seconds
        text = f"{late:.2f} s of loading, compiling and answering beyond the usual, of {allowed:.2f} s allowed"
        return [*findings, Finding("late work", late <= allowed, text, {"seconds": late})]

    def _near(self, ours: Measured, theirs: Measured, name: str, where: str) -> Finding:
        """Return the finding that the quality differs by no more than the margin and three errors of the difference."""
        values, others = (of.of(self.data.measure) for of in (ours, theirs))
        more = float(np.mean(others - values))
        allowed = self.settings.margin + 3 * float(np.std(others - values, ddof=1)) / math.sqrt(len(values))
        text = f"{self.data.measure} {others.mean():.4f} {where}: {more:+.4f}, of {allowed:.4f} allowed"
        return Finding(name, abs(more) <= allowed, text, {f"more_{self.data.scale}": more, "allowed": allowed})

    @contextmanager
    def _session(self, files: dict[str, bytes], role: str, verdict: Verdict) -> Iterator[Session]:
        settings = self.settings
        limits = settings.limits
        order: dict[str, Any] = {"role": role, "threads": settings.threads, "ranks": settings.ranks}
        seed = int(self._task_seeds.integers(1 << 31))
        task = self.data.task | {"device": settings.device, "seed": seed}
        order["task"] = task | {"budget_seconds": limits.budget_seconds}
        order |= {"limits": asdict(limits), "shapes": self.data.shapes}
        text = json.dumps({name: base64.b64encode(text).decode() for name, text in files.items()}).encode()
        with Session(self.sandbox, limits, (order, text)) as session:
            try:
                session.tell({"kind": "compiled"}, self._compiled)
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
            _, compiled = session.wait("compiled", limits.prepare_seconds, 2 * limits.work_bytes)
            self._compiled = self._compiled or bytes(compiled)
            session.stage = "training"
            load = session.load()
            released = time.monotonic()
            self.sandbox.give_data(self._copies[name])
            largest = min(limits.weights_bytes, SIZES[0] * len(untrained) + SIZES[1])
            _, weights = session.wait("trained", limits.budget_seconds, largest)
            received = time.monotonic()
            session.stage = "hand-over"
            duration = TrainingTime.between(load, session.load(), received - released)
            for _ in range(BUSY_ROUNDS):
                if (busy := session.busy_share(BUSY_LOOKS, BUSY_SECONDS)) <= BUSY_SHARE:
                    break
        return Trained(untrained, weights, released - started, duration, busy)

    @contextmanager
    def _questions(self, files: dict[str, bytes], weights: bytearray, verdict: Verdict) -> Iterator[Questions]:
        with self._session(files, "answer", verdict) as session:
            yield Questions(session, self.settings.limits, weights, self.data.choices)
