"""Questions to a session that is played by the test, where rows are cut."""

from collections.abc import Iterator

import numpy as np
import pytest

from referee import probes
from referee.probes import Questions
from referee.session import Limits
from referee.token_files import Windows

VOCABULARY, CONTEXT = 8, 12
LIMITS = Limits(late_seconds=1.6)


class Played:
    """Session that answers with equal scores; each answer takes as long as `seconds` says, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
        self.now, self.stage, self.said = 0.0, "", []
        self._seconds: Iterator[float] = iter(seconds)
        monkeypatch.setattr(probes.time, "monotonic", lambda: self.now)

    def tell(self, header, payload=b""):
        self.said.append((header, np.frombuffer(payload, np.int64) if header.get("kind") != "weights" else None))

    def wait(self, kind, seconds, largest=0):
        self.said.append(kind)
        if kind == "computed":
            self.now += next(self._seconds)
        return {}, bytearray(np.zeros(largest // 4, np.float32).tobytes())


def windows(rows: int, positions: list[int]) -> Windows:
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=(2, rows, CONTEXT + 1))
    return Windows(tokens[0], np.array([positions] * rows), tokens[1, :, :-1])


def test_a_session_learns_where_it_is_asked_when_it_has_computed_all_answers(monkeypatch):
    played = Played(monkeypatch, [0.1])
    Questions(played, LIMITS, b"", VOCABULARY).ask(np.zeros((2, CONTEXT), np.int64), np.array([[3, 7], [1, 2]]))
    (question, tokens), computed, (_, positions), answer = played.said[-4:]
    assert (question, tokens.size, computed, answer) == ({"rows": 2}, 2 * CONTEXT, "computed", "answer")
    assert positions.tolist() == [3, 7, 1, 2]


@pytest.mark.parametrize(("positions", "cut"), [([1, 5, 9], {0, 1, 2}), ([1, 5, CONTEXT - 1], {0, 1})])
def test_a_row_is_cut_at_every_asked_position_but_the_last_of_the_context(positions, cut):
    cuts = probes.draw_cuts(windows(64, positions), 2, np.random.default_rng(0))
    assert {*cuts.flat} == cut and (cuts[0] != cuts[1]).all()


@pytest.mark.parametrize(
    ("later", "late"),
    [
        ([1.6, 1.6, 1.6], 2.9),
        ([0.0, 0.0, 0.0], 3.0),
        ([60.0, 60.0, 60.0], 2.9),
        ([9.6, 1.6, 1.6], 2.9 + 8 - 0.25),
        ([1.6, 1.8, 1.6], 2.9),
    ],
    ids=["answers of 0.1 s a row", "quick answers", "slow at will", "a late second answer", "uneven answers"],
)
def test_late_work_is_what_answers_take_beyond_the_time_of_their_rows(later, late, monkeypatch):
    questions = Questions(Played(monkeypatch, [3.0, *later]), LIMITS, b"", VOCABULARY)
    rows = windows(32, [1, 5, 9])
    probes.measure(questions, rows, probes.draw_cuts(rows, 2, np.random.default_rng(0)), 16)
    assert [rows for _, rows in questions.answers] == [1, 16, 16, 16]
    assert questions.late_seconds == pytest.approx(late)
