"""Logs that count in samples_count, of a loss that falls to its target, are checked, scored, compared and plotted."""

import json
from pathlib import Path
from typing import Any

import pytest

from judging.comparison.compare import compare_sets
from judging.pages import plot, score_table
from judging.scoring import score
from judging.scoring.score import Score
from tests.judging.conftest import WriteRun, summaries

LLAMA: dict[str, Any] = {"benchmark": "llama31_8b", "dataset": "topics", "quality_target": 3.3, "samples": 12_288}


@pytest.fixture
def two(tmp_path: Path, write_run: WriteRun) -> tuple[Path, Path]:
    """Two sets, of 10, 11 ... 19 minutes and of half that time."""
    for number in range(10):
        write_run(tmp_path / "slow", number, minutes=10 + number, qualities=(5.5, 4.1, 3.29), **LLAMA)
        write_run(tmp_path / "fast", number, minutes=5 + number / 2, qualities=(4.5, 3.3), start=1.6e9, **LLAMA)
    return tmp_path / "slow", tmp_path / "fast"


def test_a_falling_loss_is_scored_by_the_samples_of_its_last_evaluation(two):
    slow, fast = (score.score([folder])[0] for folder in two)
    assert isinstance(slow, Score)
    assert (slow.score_minutes, fast.score_minutes) == (pytest.approx(14.5), pytest.approx(7.25))
    assert (slow.progress, fast.progress, slow.unit) == ([36_864.0] * 10, [24_576.0] * 10, "samples")
    assert (slow.quality, fast.quality) == (pytest.approx(3.29), pytest.approx(3.3))
    assert "36,864 samples" in score_table.table([slow], detailed=True)


def test_sets_are_compared_and_reproduced(two, printed):
    ratio = compare_sets(summaries(two[0]), summaries(two[1]), paired=False)
    assert (ratio.value, ratio.ratio_of_scores) == (pytest.approx(2), pytest.approx(2))
    assert (ratio.quality_slow, ratio.quality_fast, ratio.target) == (pytest.approx(3.29), pytest.approx(3.3), 3.3)
    claims = [{"submitter": "Example", "system": "1xCPU-baseline", "benchmark": "llama31_8b", "minutes": "14.5"}]
    (two[0] / "claims.json").write_text(json.dumps(claims))
    assert "1 of 1 claimed values agree" in printed("reproduce", two[0], "--claims", two[0] / "claims.json")


def test_a_loss_is_plotted_as_a_number_with_its_target(two, tmp_path, monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(plot, "_save", lambda figure, out: seen.append(figure))
    plot.plot_quality({folder.name: summaries(folder) for folder in two}, tmp_path / "figure.png")
    (figure,) = seen
    axes = figure.axes[0]
    assert axes.get_ylabel() == "log perplexity"
    assert [text.get_text() for text in axes.texts] == ["target 3.3"]
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == [
        "slow: median 14.500 min, 10 of 10 runs",
        "fast: median 7.250 min, 10 of 10 runs",
    ]
