"""Probes of a trained model by questions: its loss, and changes of a question that must not change the answer.

All arithmetic on answers is done here, outside of the process with submitted code, which returns scores of tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from referee.images import Images
from referee.session import Limits, Session, Violation
from referee.token_files import Windows

Asked = Windows | Images
Scores = NDArray[np.float64]
NORMALISATION_TOLERANCE: Final = 1e-3
"""Largest distance of the logarithm of the sum of probabilities from 0."""
PROBED_ROWS: Final = 16
UNEVEN_SECONDS: Final = 0.25
"""By how much an answer may be slower than the usual one, if that takes as long, before it counts as late work."""
CUTS: Final = 2
"""Cuts of a row, each in a session of its own, after which the tokens are changed."""
LEAKED: Final = {"loss": 0.003, "accuracy": 0.003}
"""Mean gain of the loss by sight of the next token, in nats, and share of images whose class changes with their order,
above which a model is refused; speed runs differ by 0.004 nats, or by 0.0015."""


class Questions:
    """Give a session its weights, then ask about tokens or images.

    Attributes:
        answers: seconds of each answer, and its rows; the first has the loading of the weights, too.

    Raises:
        Violation: the model cannot be built, or its weights cannot be loaded.
    """

    def __init__(self, session: Session, limits: Limits, weights: bytes | bytearray, vocabulary: int) -> None:
        session.wait("built", limits.prepare_seconds)
        session.stage = "answers"
        self._session, self._limits, self._vocabulary = session, limits, vocabulary
        self.answers: list[tuple[float, int]] = []
        self._started = time.monotonic()
        session.tell({"kind": "weights"}, memoryview(weights))
        session.wait("loaded", limits.prepare_seconds)

    @property
    def row_seconds(self) -> float:
        """Return the time of a row in the fastest answer but the first, and at most a share of `Limits.late_seconds`,
        since a model may be slow at will."""
        times = (seconds / rows for seconds, rows in self.answers[1:])
        return min([*times, self._limits.late_seconds / PROBED_ROWS])

    @property
    def late_seconds(self) -> float:
        """Return the seconds of the first answer, which is about one row, with the loading of the weights, beyond
        `row_seconds`, and those of later answers beyond the usual one's and as much again, up to `UNEVEN_SECONDS`: a
        training may begin at any question."""
        (first, rows), *later = self.answers
        times = sorted(seconds / rows for seconds, rows in later)
        usual = times[(len(times) - 1) // 2] if later else 0.0
        beyond = [seconds - rows * usual - min(rows * usual, UNEVEN_SECONDS) for seconds, rows in later]
        return math.fsum(max(0.0, seconds) for seconds in [first - rows * self.row_seconds, *beyond])

    def losses(self, tokens: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the losses (rows, context) that the session computes itself of the `targets`. Raises Violation."""
        self._session.tell({"rows": len(tokens)}, tokens.astype(np.int64).tobytes())
        self._session.wait("computed", self._limits.answer_seconds)
        self._session.tell({"kind": "targets"}, targets.astype(np.int64).tobytes())
        _, payload = self._session.wait("answer", self._limits.answer_seconds, 4 * targets.size)
        if len(payload) != 4 * targets.size or not np.isfinite(found := np.frombuffer(payload, np.float32)).all():
            raise Violation("prefix", "losses that are not finite, or not one for each token")
        return found.reshape(targets.shape)

    def ask(self, inputs: NDArray[Any], positions: NDArray[np.int64]) -> Scores:
        """Return log-probabilities (rows, asked, vocabulary) of the token after each position, which the session learns
        when it has computed all, or of classes. Raises Violation if the answer is late, has numbers that are not
        finite, or claims a wrong normalisation."""
        rows, asked = positions.shape
        if self.answers:
            self._started = time.monotonic()
        self._session.tell({"rows": rows}, inputs.tobytes())
        self._session.wait("computed", self._limits.answer_seconds)
        self._session.tell({"kind": "positions"}, positions.astype(np.int64).tobytes())
        size = rows * asked * self._vocabulary * 4
        header, payload = self._session.wait("answer", self._limits.answer_seconds, size)
        # Waits for other processes are not taken off: a script's own threads, waiting for each other, would hide here.
        self.answers.append((time.monotonic() - self._started, rows))
        if len(payload) != size:
            raise Violation("answers", f"{len(payload):,} bytes, where the answer to the question has {size:,}")
        logits = np.frombuffer(payload, np.float32).reshape(rows, asked, self._vocabulary).astype(np.float64)
        largest = logits.max(axis=-1, keepdims=True)
        if not np.isfinite(largest).all():  # minus infinity is a probability of 0
            raise Violation("answers", "NaN or infinite numbers in an answer")
        logarithm = largest + np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))
        if header.get("log") is True and (worst := float(np.abs(logarithm).max())) > NORMALISATION_TOLERANCE:
            raise Violation("normalisation", f"log-probabilities whose sum of probabilities is e^{worst:.4g} off 1")
        result: Scores = logits - logarithm
        return result


def difference(scores: Scores, other: Scores, sharpness: float = 1.0) -> float:
    """Return the largest total variation distance between two answers at one position, both with their
    log-probabilities times `sharpness`."""
    chances = [np.exp(sharpness * (each - each.max(axis=-1, keepdims=True))) for each in (scores, other)]
    ours, theirs = (each / each.sum(axis=-1, keepdims=True) for each in chances)
    return float(0.5 * np.abs(ours - theirs).sum(axis=-1).max())


@dataclass(frozen=True)
class Measured:
    """Losses of all rows, and some of the answers.

    Attributes:
        losses: (rows,) mean loss of a row, in nats; hits: (rows,) share of its positions at which the target has the
            highest score.
        last: (probed rows, asked, vocabulary) answers to the last rows.
        at_cuts: (cuts, rows, vocabulary) float32 answers at the cuts.
        repeated: distance between two answers to one question; alone: of the first row alone and among others.
        sharpness: see `difference`: of images, whose scores may be as low as one likes, that which gives them a
            deviation of 1 at least.
    """

    losses: NDArray[np.float64]
    hits: NDArray[np.float64]
    last: Scores
    at_cuts: NDArray[np.float32]
    repeated: float
    alone: float
    sharpness: float

    @property
    def loss(self) -> float:
        """Return the mean loss, in nats."""
        return float(self.losses.mean())

    def of(self, measure: str) -> NDArray[np.float64]:
        """Return the "loss" or the "accuracy" of each row."""
        return self.losses if measure == "loss" else self.hits


@dataclass(frozen=True)
class Probed:
    """Findings of the probes on one training's weights.

    Attributes:
        distances: probe -> largest total variation distance of answers that should be equal.
        gain: mean gain of the loss by sight of the true next token, in nats; of images, the share that has
            another class in another order.
        late_seconds: the least of the sessions' (`Questions.late_seconds`), since each has nothing but the weights;
            row_seconds: see there.
        altered: of images, the answers about slightly altered ones.
    """

    measured: Measured
    distances: dict[str, float]
    gain: float
    late_seconds: float
    row_seconds: float
    altered: Measured | None = None


def draw_cuts(windows: Asked, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` cuts of each row as (count, rows) indices of its positions, of which the context's last, after
    which there is no text, is none. Images have their only position, once."""
    if isinstance(windows, Images):
        return windows.positions.T
    asked, last = windows.positions.shape[1], windows.futures.shape[1] - 1
    return np.stack([draw.permutation(asked - (row[-1] == last))[:count] for row in windows.positions], axis=1)


def measure(questions: Questions, windows: Asked, cuts: NDArray[np.int64], batch: int) -> Measured:
    """Compute the loss of every row, asked in questions of `batch` rows, after a question about the first row alone;
    the first of `batch` rows is asked twice."""
    inputs, positions, targets = windows.inputs, windows.positions, windows.targets
    losses: list[NDArray[np.float64]] = []
    hits: list[NDArray[np.float64]] = []
    kept: list[NDArray[np.float32]] = []
    alone = questions.ask(inputs[:1], positions[:1])
    answer = earlier = questions.ask(inputs[:batch], positions[:batch])
    images = isinstance(windows, Images)
    sharpness = max(1.0, 1 / max(float(np.maximum(earlier, -100).std(axis=-1).mean()), 1e-12)) if images else 1.0
    for start in range(0, len(inputs), batch):
        rows = slice(start, start + batch)
        answer = questions.ask(inputs[rows], positions[rows])
        if start == 0:
            repeated, apart = (difference(answer[: len(other)], other, sharpness) for other in (earlier, alone))
        loss = -np.take_along_axis(answer, targets[rows][..., None], axis=-1)[..., 0].mean(axis=-1)
        losses.append(np.minimum(loss, 100) if images else loss)  # a class may have probability 0
        hits.append((answer.argmax(axis=-1) == targets[rows]).mean(axis=-1))
        kept.append(_at(answer, cuts[:, rows]).astype(np.float32))
    at_cuts = np.concatenate(kept, axis=1)
    return Measured(np.concatenate(losses), np.concatenate(hits), answer, at_cuts, repeated, apart, sharpness)


def probe(
    session: Callable[[], AbstractContextManager[Questions]], windows: Asked, cuts: NDArray[np.int64], batch: int
) -> Probed:
    """Ask all questions about one training's weights, in one session after another.

    Args:
        session: starts one that has the weights.
        cuts: (cuts, rows) as `draw_cuts` returns them.
        batch: rows of a question.
    """
    with session() as questions:
        measured = measure(questions, windows, cuts, batch)
    late, row = [questions.late_seconds], questions.row_seconds
    with session() as questions:
        state, rows = _repeat(questions, windows, measured)
    late.append(questions.late_seconds)
    distance, repeated = 0.0, measured.repeated
    gains: list[NDArray[np.float64]] = []
    for cut in range(len(cuts)):
        with session() as questions:
            changed, twice, gain = _change(questions, windows, measured, cuts, cut, batch)
        late.append(questions.late_seconds)
        distance, repeated, gains = max(distance, changed), max(repeated, twice), [*gains, gain]
    altered, of_change = None, "causality"
    if isinstance(windows, Images):
        of_change = "order"
        with session() as questions:
            altered = measure(questions, windows.altered(), cuts, batch)
    distances = {"determinism": repeated, "state": state, "rows": max(rows, measured.alone), of_change: distance}
    return Probed(measured, distances, float(np.concatenate(gains).mean()), min(late), row, altered)


def _repeat(questions: Questions, windows: Asked, measured: Measured) -> tuple[float, float]:
    """Ask one of the last rows alone, then all of them, which were a session's last question, then half with others.

    Returns:
        tuple: distances of answers as a session's first and as its last, and of rows alone and among other rows.
    """
    last, apart_by = measured.last, partial(difference, sharpness=measured.sharpness)
    count, half = len(last), len(last) // 2
    rows, positions = windows.inputs[-count:], windows.positions[-count:]
    alone = slice(half, half + 1)
    apart = apart_by(questions.ask(rows[alone], positions[alone]), last[alone])
    first = apart_by(questions.ask(rows, positions), last)
    company = np.concatenate([windows.futures[:half], rows[half:]])
    return first, max(apart, apart_by(questions.ask(company, positions)[half:], last[half:]))


def _change(
    questions: Questions, windows: Asked, measured: Measured, cuts: NDArray[np.int64], cut: int, batch: int
) -> tuple[float, float, NDArray[np.float64]]:
    """Ask what `measure` asked, in the same form, with other text after cut number `cut` of each row and in the same
    order, or images in another order.

    The session never sees a row whole, so that neither its state nor the number of the question tells it apart.

    Returns:
        tuple: the largest distance between answers at the cuts, that of two answers to one question, and (rows,) the
        gain of the loss at the cuts, in nats, by sight of the true next token, or 1 for an image of another class.
    """
    inputs, order = windows.changed(cuts[cut], cut)
    of_rows, positions, before = cuts[cut][order], windows.positions[order], measured.at_cuts[cut][order]
    targets = np.take_along_axis(windows.targets[order], of_rows[:, None], axis=1)
    worst, gains, answers = 0.0, [], []
    for rows in [slice(1), slice(batch), *(slice(start, start + batch) for start in range(0, len(inputs), batch))]:
        (answer,) = _at(questions.ask(inputs[rows], positions[rows]), of_rows[None, rows])
        answers.append(answer)
        whole = before[rows].astype(np.float64)
        worst = max(worst, difference(answer, whole, measured.sharpness))
        if isinstance(windows, Images):  # the accuracy has the highest score only, however near the others are
            gains.append((answer.argmax(axis=-1) != whole.argmax(axis=-1)).astype(np.float64))
            continue
        likely = np.exp([np.take_along_axis(scores, targets[rows], axis=-1)[:, 0] for scores in (whole, answer)])
        gains.append(-np.diff(np.log(np.maximum(likely, 1e-12)), axis=0)[0])
    return worst, difference(answers[1], answers[2], measured.sharpness), np.concatenate(gains[2:])


def _at(answer: Scores, cuts: NDArray[np.int64]) -> Scores:
    """Return the answers (cuts, rows, vocabulary) at the indices `cuts`, (cuts, rows), of `answer`'s positions."""
    return answer[np.arange(len(answer)), cuts]
