"""Figure of quality over time."""

import json
import shutil
import sys

import pytest
from matplotlib.figure import Figure

from judging.comparison.compare import compare_sets
from judging.pages import plot
from judging.pages.plot import COLOURS, PlotError, colours_of, mean_curve, plot_quality, speed_up
from judging.pages.score_table import NOTICE
from judging.scoring.interval import Interval
from mlevents.record import read
from mlevents.summary import summarize
from tests.judging.conftest import summaries
from tests.mlevents.conftest import event


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as they are when they are saved."""
    seen = []
    save = plot._save
    monkeypatch.setattr(plot, "_save", lambda figure, out: (seen.append(figure), save(figure, out)))
    return seen


def test_the_figure_shows_the_logs(tmp_path, write_run, write_set, figures):
    digits = {"dataset": "digits", "quality_target": 0.95}
    slow = write_set(tmp_path / "slow", (2.0, 3.0, 4.0), qualities=(0.5, 0.9, 0.96), **digits)
    fast = write_set(tmp_path / "fast", (1.0,), qualities=(0.8, 0.97), **digits)
    write_run(fast, 1, minutes=1.0, qualities=(0.8, 0.9), status="aborted", **digits)
    plot_quality({"slow": summaries(slow), "fast": summaries(fast)}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    axes, times = figures[0].axes
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    runs = [line for line in lines if line.get_linewidth() < 1]
    assert [len(line.get_xdata()) for line in runs] == [3, 3, 3, 2, 2]
    assert list(runs[0].get_xdata()) == pytest.approx([40, 80, 120]) and list(runs[0].get_ydata())[-1] == 0.96
    means = [line for line in lines if line.get_linewidth() > 2]
    assert [line.get_xdata()[-1] for line in means] == pytest.approx([180, 60])
    assert [line.get_ydata()[-1] for line in means] == pytest.approx([(0.93 + 0.96 + 0.9) / 3, 0.935], abs=0.02)
    ends = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [line.get_marker() for line in ends] == ["o", "o", "o", "o", "x"]
    assert [line.get_xdata()[0] for line in ends] == pytest.approx([120, 180, 240, 60, 60])
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [0.95]
    rows = {line.get_ydata()[0]: list(line.get_xdata()) for line in times.lines if line.get_marker() == "o"}
    assert rows[0] == pytest.approx([120, 180, 240]) and rows[1] == pytest.approx([60])
    reference, text = (text.get_text() for text in times.texts)
    assert reference == "reference\n(one budget)" and "where both reach\nmisses more (0 of 3 and 1 of 2)" in text
    (legend,) = figures[0].legends
    assert axes.get_legend() is None  # nothing covers the data
    assert [text.get_text() for text in legend.get_texts()] == [
        *("slow: median 180.00 s, 3 of 3 runs", "fast: median 60.00 s, 1 of 2 runs"),
        *("thin: one run; thick: mean; shade: its 95 % interval (from 3 runs on)", "target missed"),
    ]
    assert legend.get_title().get_text() == NOTICE
    assert axes.get_title(loc="left") == "slow, fast (unverified, demonstration)"
    assert times.get_xlabel().startswith("seconds") and axes.get_ylabel() == "top-1 accuracy on digits"


def test_the_ratio_in_the_figure_is_that_of_compare(tmp_path, write_run, figures):
    for number in range(4):
        for name, minutes in (("baseline", 4.0 + number / 10), ("methods", 2.0 + number / 5)):
            write_run(tmp_path / name, number, minutes=minutes)
    sets = {name: summaries(tmp_path / name) for name in ("methods", "baseline")}
    plot_quality(sets, tmp_path / "figure.png")
    paired = speed_up(sets["baseline"], sets["methods"])
    assert [text.get_text() for text in figures[0].axes[1].texts] == [paired, "reference\n(one budget)"]
    ratio = compare_sets(sets["baseline"], sets["methods"], paired="pairs" in paired)
    assert paired == f"{ratio.text()}, {'4 pairs' if ratio.paired else '4 and 4 runs'}\nfaster"


def test_a_config_has_one_colour_in_all_figures_and_no_two_share_one():
    names = ["digits_methods", "digits_ema", "digits_baseline", "digits_baseline_2022", "a", "b", "c"]
    colours = colours_of({name: name for name in names})
    assert colours == colours_of({name: name for name in reversed(names)}) and len(set(colours.values())) == len(names)
    assert (colours["digits_baseline"], colours["digits_methods"]) == COLOURS[:2]
    assert colours["digits_ema"] == colours_of({"baseline+ema": "digits_ema", "methods": "a"})["baseline+ema"]
    assert len(set(colours_of({str(n): "baseline" for n in range(7)}).values())) == 7
    assert colours_of({"a": "\ud800"})  # as a log may have it


def test_a_mean_begins_when_all_runs_have_and_has_an_interval_from_three_runs_on():
    curves = [([1.0, 3.0], [0.0, 2.0]), ([1.0, 3.0], [0.0, 4.0]), ([2.0, 5.0], [9.0, 9.0])]
    times, means = mean_curve(curves) or ([], [])
    assert (times[0], times[-1], means[0].value, means[-1].value) == (2.0, 3.0, 4.0, 5.0)
    assert means[-1] == Interval.of([2.0, 4.0, 9.0])
    assert all(mean.bounds is None for mean in (mean_curve(curves[:2]) or ([], means))[1])
    assert mean_curve([([1.0], [0.5])]) is mean_curve([]) is None


def test_invalid_figures_are_refused_and_nothing_written(tmp_path, write_run, monkeypatch):
    good = [summarize(read(write_run(tmp_path / "a", 0)))]
    bert = [summarize(read(write_run(tmp_path / "b", 0, benchmark="bert")))]
    empty = [summarize(read(write_run(tmp_path / "c", 0, qualities=())))]
    for sets, name, match in (
        ({"a": good, "b": bert}, "figure.png", "bert and resnet have different metrics"),
        ({"c": empty}, "figure.png", "no run of c logged an evaluation"),
        ({}, "figure.png", "nothing was plotted"),
        ({str(n): good for n in range(8)}, "figure.png", "8 sets are too many"),
        ({"a": good}, "figure.docx", "'.docx' is not a supported format"),
    ):
        with pytest.raises(PlotError, match=match):
            plot_quality(sets, tmp_path / name)
    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PlotError, match=r"timedrun\[report\]"):
        plot_quality({"a": good}, tmp_path / "figure.png")
    assert not list(tmp_path.glob("figure.*"))


def test_all_sets_below_a_folder_are_plotted_once_into_it(tmp_path, write_run, figures, printed, refused):
    for system in ("slow", "fast"):
        write_run(tmp_path / system, 0, platform=system, config_name=system)
    (tmp_path / "slow/result_1.txt").touch()  # of a failed run
    shutil.copytree(tmp_path / "slow", tmp_path / "zz_copy")
    printed("report", tmp_path, "--figure", tmp_path / "over_time.png")
    assert (tmp_path / "over_time.png").is_file()
    assert [text.get_text().split(":")[0] for text in figures[0].legends[0].get_texts()][:2] == ["fast", "slow"]
    (tmp_path / "slow/result_0.txt").write_text("")
    assert "no MLPerf log; nothing" in refused("report", tmp_path / "slow", "--figure", tmp_path / "x.png", code=1)


def test_losses_and_throughput_of_the_log_are_plotted(tmp_path, write_run, figures, printed, refused):
    path = write_run(tmp_path / "one", 0, minutes=2.0)
    assert "no run of" in refused("report", tmp_path, "--figure", "x.png", "--what", "loss", code=1)
    started = read(path).started
    stats = event(int(started.time_ms) + 30_000, "tracked_stats", {"train_loss": 2.5, "throughput": 80.0}, step=5)
    lines = path.read_text().splitlines()
    lines.insert(started.line, f":::MLLOG {json.dumps(stats)}")
    path.write_text("\n".join([*lines, ""]))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / path.name).write_text(path.read_text().replace('"train_loss": 2.5', '"train_loss": 2.75'))
    for what, value, label in (("loss", 2.5, "training loss"), ("throughput", 80.0, "samples per second")):
        printed("report", tmp_path, "--figure", tmp_path / "figure.png", "--what", what)
        axes, *others = figures[-1].axes
        assert len(others) == (what == "loss")  # two sets may define it differently
        line = axes.lines[0]
        assert (list(line.get_xdata()), list(line.get_ydata())) == ([pytest.approx(30)], [value])
        text = figures[-1]._supylabel.get_text() if others else axes.get_ylabel()  # type: ignore[attr-defined]
        assert text.startswith(label)
