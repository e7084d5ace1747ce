"""Probes of a trained model by questions: its loss, and changes of a question that must not change the answer.

All arithmetic on answers is done here, outside of the process with submitted code, which returns scores of tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from timedrun.referee.session import Limits, Session, Violation
from timedrun.referee.token_files import Windows
from timedrun.referee.verdict import Finding

Scores = NDArray[np.float64]
NORMALISATION_TOLERANCE: Final = 1e-3
"""Largest distance of the logarithm of the sum of probabilities from 0."""
PROBED_ROWS: Final = 16
CUTS: Final = 12
"""Changes of later tokens per probed row, each at another position."""


def ask(
    session: Session, limits: Limits, tokens: NDArray[np.int64], positions: NDArray[np.int64], vocabulary: int
) -> Scores:
    """Return log-probabilities (rows, asked, vocabulary) of the token after each position.

    Raises:
        Violation: the answer is late, has numbers that are not finite, or claims a wrong normalisation.
    """
    rows, asked = positions.shape
    session.tell({"rows": rows, "positions": positions.tolist()}, tokens.astype(np.int64).tobytes())
    size = rows * asked * vocabulary * 4
    header, payload = session.wait("answer", limits.answer_seconds, size)
    if len(payload) != size:
        raise Violation("answers", f"{len(payload):,} bytes, where the answer to the question has {size:,}")
    found = np.frombuffer(payload, np.float32).reshape(rows, asked, vocabulary).astype(np.float64)
    largest = found.max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():  # minus infinity is a probability of 0
        raise Violation("answers", "NaN or infinite numbers in an answer")
    logarithm = largest + np.log(np.exp(found - largest).sum(axis=-1, keepdims=True))
    if header.get("log") is True and (worst := float(np.abs(logarithm).max())) > NORMALISATION_TOLERANCE:
        raise Violation("normalisation", f"log-probabilities whose sum of probabilities is e^{worst:.4g} off 1")
    result: Scores = found - logarithm
    return result


def load(session: Session, limits: Limits, weights: bytes | bytearray) -> None:
    """Give a session its weights.

    Raises:
        Violation: they cannot be loaded.
    """
    session.stage = "answers"
    session.tell({"kind": "weights"}, memoryview(weights))
    session.wait("loaded", limits.prepare_seconds)


def difference(one: Scores, other: Scores) -> float:
    """Return the largest total variation distance between two answers at one position."""
    return float(0.5 * np.abs(np.exp(one) - np.exp(other)).sum(axis=-1).max())


@dataclass(frozen=True)
class Measured:
    """Losses of all rows, and answers to the last batch.

    Attributes:
        losses: (rows,) mean loss of a row, in nats.
        last: (probed rows, asked, vocabulary) answers to the last rows.
        repeated: distance between two answers to the first question.
        first_seconds: from the weights' sending to the first answer; second_seconds: of the second answer.
    """

    losses: NDArray[np.float64]
    last: Scores
    repeated: float
    first_seconds: float
    second_seconds: float

    @property
    def loss(self) -> float:
        """Return the mean loss, in nats."""
        return float(self.losses.mean())


def measure(
    session: Session, limits: Limits, weights: bytes | bytearray, windows: Windows, *, vocabulary: int, batch: int
) -> Measured:
    """Load the weights and compute the loss of every row; the first question is asked twice."""
    started = time.monotonic()
    load(session, limits, weights)
    inputs, positions, targets = windows.rows[:, :-1], windows.positions, windows.targets
    times, losses = [time.monotonic()], []
    repeated, earlier = 0.0, None
    for start in [0, *range(0, len(inputs), batch)]:
        rows = slice(start, start + batch)
        answer = ask(session, limits, inputs[rows], positions[rows], vocabulary)
        times.append(time.monotonic())
        if len(times) == 3 and earlier is not None:
            repeated = difference(answer, earlier)
        earlier = answer
        if len(times) > 2:
            losses.append(-np.take_along_axis(answer, targets[rows][..., None], axis=-1)[..., 0].mean(axis=-1))
    assert earlier is not None
    return Measured(np.concatenate(losses), earlier, repeated, times[1] - started, times[2] - times[1])


@dataclass(frozen=True)
class Probe:
    """Questions whose answers must equal those of `measured` to its last rows.

    Attributes:
        weights: weights of the model that `measured` is of.
        seed: seed of the positions and rows that are drawn.
    """

    limits: Limits
    weights: bytearray
    windows: Windows
    measured: Measured
    vocabulary: int
    tolerance: float
    seed: int

    def repeat(self, session: Session) -> list[Finding]:
        """Ask the last rows again as the first question of a session."""
        load(session, self.limits, self.weights)
        count = len(self.measured.last)
        answer = self._ask(session, self.windows.rows[-count:, :-1], self.windows.positions[-count:])
        found = difference(answer, self.measured.last)
        return [judged("state", found, self.tolerance, "answers as a session's first and as its last")]

    def change(self, session: Session) -> list[Finding]:
        """Ask rows alone, among other rows, and with other later tokens, in a session that never sees them whole.

        A model that keeps its first answer to a beginning, and repeats it, has computed that from a false continuation:
        cuts of a row come in ascending order, so that each is the first question that goes on to its position.
        """
        draw = np.random.default_rng(self.seed)
        load(session, self.limits, self.weights)
        last = self.measured.last
        count, half = len(last), len(last) // 2
        rows, positions = self.windows.rows[-count:, :-1], self.windows.positions[-count:]
        strange = self.windows.rows[:, :-1] if count == len(self.windows.rows) else self.windows.rows[:-count, :-1]

        alone = slice(half, half + 1)
        apart = difference(self._ask(session, rows[alone], positions[alone]), last[alone])
        company = rows.copy()
        company[:half] = strange[draw.integers(len(strange), size=half)]
        answer = self._ask(session, company, positions)
        apart = max(apart, difference(answer[half:], last[half:]))

        rows, positions = rows[:half], positions[:half]
        asked = positions.shape[1] - 1
        cuts = np.sort([draw.permutation(asked)[: min(CUTS, asked)] for _ in rows], axis=1)
        worst = 0.0
        for cut in np.take_along_axis(positions, cuts, axis=1).T[..., None]:  # (rows, 1)
            futures = strange[draw.integers(len(strange), size=half)]
            answer = self._ask(session, np.where(np.arange(rows.shape[1]) > cut, futures, rows), positions)
            for row in range(half):
                seen = positions[row] <= cut[row]
                worst = max(worst, difference(answer[row, seen], last[row, seen]))
        return [
            judged("rows", apart, self.tolerance, "a row's answers alone and among other rows"),
            judged("causality", worst, self.tolerance, "answers before changed tokens"),
        ]

    def _ask(self, session: Session, tokens: NDArray[np.int64], positions: NDArray[np.int64]) -> Scores:
        return ask(session, self.limits, tokens, positions, self.vocabulary)


def judged(name: str, found: float, tolerance: float, what: str) -> Finding:
    """Return the finding on a total variation distance."""
    text = f"{what} differ by {found:.2g} in total variation, of {tolerance:g} allowed"
    return Finding(name, found <= tolerance, text, {"distance": found, "tolerance": tolerance})


def question_rows(asked: int, vocabulary: int) -> int:
    """Return the rows of one question: at most `PROBED_ROWS`, and at most 2^24 numbers in the answer."""
    return max(4, min(PROBED_ROWS, (1 << 24) // (asked * vocabulary)))
