"""Probes of a trained model by questions: its loss, and changes of a question that must not change the answer.

All arithmetic on answers is done here, outside of the process with submitted code, which returns scores of tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from referee.session import Limits, Session, Violation
from referee.token_files import Windows
from referee.verdict import Finding

Scores = NDArray[np.float64]
NORMALISATION_TOLERANCE: Final = 1e-3
"""Largest distance of the logarithm of the sum of probabilities from 0."""
PROBED_ROWS: Final = 16
CUTS: Final = 2
"""Cuts of a row, each in a session of its own, after which the tokens are changed."""
LEAKED_NATS: Final = 0.003
"""Mean gain of the loss by sight of the next token, above which a model is refused; speed runs differ by 0.004."""


class Questions:
    """Give a session its weights, then ask about tokens.

    Attributes:
        seconds: from the weights' sending to the first answer, then of each later answer.

    Raises:
        Violation: the model cannot be built, or its weights cannot be loaded.
    """

    def __init__(self, session: Session, limits: Limits, weights: bytes | bytearray, vocabulary: int) -> None:
        session.wait("built", limits.prepare_seconds)
        session.stage = "answers"
        self._session, self._limits, self._vocabulary = session, limits, vocabulary
        self._started = time.monotonic()
        session.tell({"kind": "weights"}, memoryview(weights))
        session.wait("loaded", limits.prepare_seconds)
        self.seconds: list[float] = []

    @property
    def late_seconds(self) -> float:
        """Return the time to the first answer, beyond that of the fastest later one.

        Of an answer's time at most `Limits.late_seconds` count, since the model may be slow at will from then on.
        """
        return self.seconds[0] - min([*self.seconds[1:], self._limits.late_seconds])

    def ask(self, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Scores:
        """Return log-probabilities (rows, asked, vocabulary) of the token after each position. Raises Violation if the
        answer is late, has numbers that are not finite, or claims a wrong normalisation."""
        rows, asked = positions.shape
        question = {"rows": rows, "positions": positions.tolist()}
        started = time.monotonic() if self.seconds else self._started
        self._session.tell(question, tokens.astype(np.int64).tobytes())
        size = rows * asked * self._vocabulary * 4
        header, payload = self._session.wait("answer", self._limits.answer_seconds, size)
        self.seconds.append(time.monotonic() - started)
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


def difference(scores: Scores, other: Scores) -> float:
    """Return the largest total variation distance between two answers at one position."""
    return float(0.5 * np.abs(np.exp(scores) - np.exp(other)).sum(axis=-1).max())


@dataclass(frozen=True)
class Measured:
    """Losses of all rows, and some of the answers.

    Attributes:
        losses: (rows,) mean loss of a row, in nats.
        last: (probed rows, asked, vocabulary) answers to the last rows.
        at_cuts: (cuts, rows, vocabulary) float32 answers at the cuts.
        repeated: distance between two answers to the first question.
        late_seconds: see `Questions`.
    """

    losses: NDArray[np.float64]
    last: Scores
    at_cuts: NDArray[np.float32]
    repeated: float
    late_seconds: float

    @property
    def loss(self) -> float:
        """Return the mean loss, in nats."""
        return float(self.losses.mean())


def draw_cuts(windows: Windows, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return `count` cuts of each row as (count, rows) indices of its positions, of which the last is none."""
    rows, asked = windows.positions.shape
    return np.stack([draw.permutation(asked - 1)[:count] for _ in range(rows)], axis=1)


def measure(questions: Questions, windows: Windows, cuts: NDArray[np.int64], batch: int) -> Measured:
    """Compute the loss of every row, asked in questions of `batch` rows; the first question is asked twice."""
    inputs, positions, targets = windows.rows[:, :-1], windows.positions, windows.targets
    losses: list[NDArray[np.float64]] = []
    kept: list[NDArray[np.float32]] = []
    answer = earlier = questions.ask(inputs[:batch], positions[:batch])
    for start in range(0, len(inputs), batch):
        rows = slice(start, start + batch)
        answer = questions.ask(inputs[rows], positions[rows])
        if start == 0:
            repeated = difference(answer, earlier)
        losses.append(-np.take_along_axis(answer, targets[rows][..., None], axis=-1)[..., 0].mean(axis=-1))
        kept.append(_at(answer, cuts[:, rows]).astype(np.float32))
    late = questions.late_seconds
    return Measured(np.concatenate(losses), answer, np.concatenate(kept, axis=1), repeated, late)


@dataclass(frozen=True)
class Probe:
    """Questions whose answers must equal those of `measured`.

    Attributes:
        measured: answers to the rows of `windows`, asked in questions of `batch` rows.
        cuts: (cuts, rows) as `draw_cuts` returns them.
        tolerance: largest total variation distance between answers that should be equal.
    """

    windows: Windows
    measured: Measured
    cuts: NDArray[np.int64]
    batch: int
    tolerance: float

    def repeat(self, questions: Questions) -> list[Finding]:
        """Ask the last rows as the first question of a session, then one of them alone, then half with other rows."""
        last = self.measured.last
        count, half = len(last), len(last) // 2
        rows, positions = self.windows.rows[-count:, :-1], self.windows.positions[-count:]
        first = difference(questions.ask(rows, positions), last)
        alone = slice(half, half + 1)
        apart = difference(questions.ask(rows[alone], positions[alone]), last[alone])
        company = np.concatenate([self.windows.futures[:half], rows[half:]])
        apart = max(apart, difference(questions.ask(company, positions)[half:], last[half:]))
        return [
            judged("state", first, self.tolerance, "answers as a session's first and as its last"),
            judged("rows", apart, self.tolerance, "a row's answers alone and among other rows"),
        ]

    def change(self, questions: Questions, cut: int) -> tuple[float, NDArray[np.float64]]:
        """Ask what `measure` asked, in the same order and form, with other text after cut number `cut` of each row.

        The session never sees a row whole, so that neither its state nor the number of the question tells it apart.

        Returns:
            tuple: the largest distance between answers at the cuts, and (rows,) the gain of the loss there, in nats,
            by sight of the true next token.
        """
        cuts = self.cuts[cut]
        ends = np.take_along_axis(self.windows.positions, cuts[:, None], axis=1)
        others = np.roll(self.windows.futures, cut, axis=0)
        later = np.arange(others.shape[1]) > ends
        inputs = np.where(later, others, self.windows.rows[:, :-1])
        targets = np.take_along_axis(self.windows.targets, cuts[:, None], axis=1)
        worst, gains = 0.0, []
        for start in [0, *range(0, len(inputs), self.batch)]:
            rows = slice(start, start + self.batch)
            (answer,) = _at(questions.ask(inputs[rows], self.windows.positions[rows]), cuts[None, rows])
            whole = self.measured.at_cuts[cut, rows].astype(np.float64)
            worst = max(worst, difference(answer, whole))
            likely = np.exp([np.take_along_axis(scores, targets[rows], axis=-1)[:, 0] for scores in (whole, answer)])
            gains.append(np.diff(np.log(np.maximum(likely, 1e-12)), axis=0)[0])
        return worst, -np.concatenate(gains[1:])


def _at(answer: Scores, cuts: NDArray[np.int64]) -> Scores:
    """Return the answers (cuts, rows, vocabulary) at the indices `cuts`, (cuts, rows), of `answer`'s positions."""
    return answer[np.arange(len(answer)), cuts]


def judged(name: str, value: float, tolerance: float, what: str) -> Finding:
    """Return the finding on a total variation distance."""
    text = f"{what} differ by {value:.2g} in total variation, of {tolerance:g} allowed"
    return Finding(name, value <= tolerance, text, {"distance": value, "tolerance": tolerance})


def question_rows(asked: int, vocabulary: int) -> int:
    """Return the rows of one question: at most `PROBED_ROWS`, and at most 2^24 numbers in the answer."""
    return max(4, min(PROBED_ROWS, (1 << 24) // (asked * vocabulary)))
