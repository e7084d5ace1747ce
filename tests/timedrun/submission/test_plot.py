"""Figure of quality over time."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from mlevents.record import read, result_files
from mlevents.summary import RunSummary, summarize
from timedrun.cli import main
from timedrun.submission import plot
from timedrun.submission.plot import PlotError, plot_quality

WriteRun = Callable[..., Path]


def _runs(folder: Path) -> list[RunSummary]:
    return [summarize(read(path)) for path in result_files(folder)]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they are when they are saved."""
    seen: list[Figure] = []
    save = plot._save

    def keep(figure: Figure, out: Path) -> None:
        seen.append(figure)
        save(figure, out)

    monkeypatch.setattr(plot, "_save", keep)
    return seen


def test_the_figure_shows_the_logs(tmp_path: Path, write_run: WriteRun, figures: list[Figure]) -> None:
    digits: dict[str, Any] = {"dataset": "digits", "quality_target": 0.95}
    for number in range(3):
        write_run(tmp_path / "slow", number, minutes=2.0 + number, qualities=(0.5, 0.9, 0.96), **digits)
    write_run(tmp_path / "fast", 0, minutes=1.0, qualities=(0.8, 0.97), **digits)
    write_run(tmp_path / "fast", 1, minutes=1.0, qualities=(0.8, 0.9), status="aborted", **digits)
    plot_quality({"slow": _runs(tmp_path / "slow"), "fast": _runs(tmp_path / "fast")}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    axes: Any = figures[0].axes[0]
    curves = [line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 1]
    assert [len(line.get_xdata()) for line in curves] == [3, 3, 3, 2, 2]
    assert list(curves[0].get_xdata()) == pytest.approx([40, 80, 120]) and list(curves[0].get_ydata())[-1] == 0.96
    ends = [(line.get_marker(), line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 1]
    assert [marker for marker, _ in ends] == ["o", "o", "o", "o", "x"]
    assert [x for _, x in ends] == pytest.approx([120, 180, 240, 60, 60])
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [0.95]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["slow: median 180.0 seconds, 3 of 3 runs", "fast: median 60.0 seconds, 1 of 2 runs"]
    assert axes.get_title(loc="left") == "Time to train, resnet on digits (unverified, demonstration)"
    assert axes.get_xlabel().startswith("seconds") and axes.get_ylabel() == "top-1 accuracy"


def test_long_runs_are_drawn_in_minutes(tmp_path: Path, write_run: WriteRun, figures: list[Figure]) -> None:
    write_run(tmp_path, 0, minutes=30)
    plot_quality({"baseline": _runs(tmp_path)}, tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()
    axes: Any = figures[0].axes[0]
    assert axes.get_xlabel().startswith("minutes") and axes.lines[0].get_xdata()[-1] == pytest.approx(30)
    assert axes.get_title(loc="left") == "Time to train, resnet on imagenet (unverified)"


def test_invalid_figures_are_refused_and_nothing_written(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bert = (
        [summarize(read(write_run(tmp_path / "a", 0)))],
        [summarize(read(write_run(tmp_path / "b", 0, benchmark="bert")))],
    )
    empty = [summarize(read(write_run(tmp_path / "c", 0, qualities=())))]
    out = tmp_path / "figure.png"
    for sets, name, match in (
        ({"a": good, "b": bert}, "figure.png", "bert and resnet have different metrics"),
        ({"c": empty}, "figure.png", "no run of c logged an evaluation"),
        ({}, "figure.png", "nothing was plotted"),
        ({str(n): good for n in range(8)}, "figure.png", "8 sets are too many"),
        ({"a": good}, "figure.docx", "'.docx' is not a supported format"),
    ):
        with pytest.raises(PlotError, match=match):
            plot_quality(sets, tmp_path / name)
    imported = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PlotError, match=r"timedrun\[report\]"):
        plot_quality({"a": good}, out)
    assert not out.exists()


def test_a_folder_of_several_sets_is_not_drawn_as_one(
    tmp_path: Path, write_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for system in ("slow", "fast"):
        write_run(tmp_path / system, 0, platform=system)
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "figure.png")]) == 2
    assert "holds 2 sets" in capsys.readouterr().err and not (tmp_path / "figure.png").exists()
    assert main(["plot", str(tmp_path / "slow"), str(tmp_path / "fast"), "--out", str(tmp_path / "figure.png")]) == 0
