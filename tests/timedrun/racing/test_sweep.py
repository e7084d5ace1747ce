"""What the report of a sweep says of methods with and without an effect."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import patch

import pytest

from judging.comparison.tradeoff import compare_curves
from judging.ground.errors import UsageError
from timedrun import cli
from timedrun.evidence.race_package import package_race
from timedrun.racing.plan import Rounds, schedule
from timedrun.racing.race_file import Budget, Race
from timedrun.racing.sweep_curves import curves_at
from timedrun.racing.sweep_report import SweepReport

WriteRun = Callable[..., Path]
SECONDS = {0.5: 20.0, 1.0: 40.0, 2.0: 80.0}
QUALITY = {0.5: 0.60, 1.0: 0.70, 2.0: 0.75}
NOISE = (0.0, 0.004, -0.004, 0.002)
Runs = Mapping[float, list[tuple[float, float]]]
"""Seconds and quality of each seed's run, by length."""


def runs(slower: float = 1.0, better: float = 0.0, ratios: tuple[float, ...] = (0.5, 1.0)) -> Runs:
    """A curve like the baseline's, `slower` times as slow and `better` by a quality."""
    values = {}
    for ratio in ratios:
        shifted = [NOISE[(seed + (better != 0)) % 4] / 4 for seed in range(4)]
        values[ratio] = [
            (SECONDS[ratio] * slower, QUALITY[ratio] + NOISE[seed] + better + shifted[seed]) for seed in range(4)
        ]
    return values


@pytest.fixture
def sweep(tmp_path: Path, write_run: WriteRun) -> Callable[..., Race]:
    """Writes a sweep of a baseline at three lengths and the given curves, all finished."""

    def write(**curves: Runs) -> Race:
        curves = {"baseline": runs(ratios=(0.5, 1.0, 2.0)), **curves}
        budgets = {f"{name}_x{r:g}": Budget(curve=name, ratio=r) for name, curve in curves.items() for r in curve}
        turns = schedule(list(budgets), Rounds(runs=4, first_seed=0))
        for turn in turns:
            seconds, quality = curves[budgets[turn.side].curve][budgets[turn.side].ratio][turn.number]
            write_run(tmp_path / turn.side, turn.number, seconds, quality=quality)
            turn.status = "finished"
        sides = {side: f"{budget.curve} x{budget.ratio:g}" for side, budget in budgets.items()}
        race = Race(benchmark="toy", runs=4, sides=sides, budgets=budgets, turns=turns)
        race.save(tmp_path)
        return race

    return write


def test_a_method_is_better_where_it_pays_and_worse_where_not(sweep, tmp_path):
    lucky = {r: [(s, q + (0.1 if seed == 1 else 0.0)) for seed, (s, q) in enumerate(runs()[r])] for r in (0.5, 1.0)}
    sweep(
        sleeps=runs(slower=1.5),
        pays=runs(slower=1.1, better=0.05),
        does_not=runs(slower=1.9, better=0.005),
        lucky=lucky,  # better on one seed
        late={0.5: runs(better=-0.05)[0.5], 1.0: runs(better=0.03)[1.0]},
    )
    curves = {curve.label: curve for curve in compare_curves(curves_at([tmp_path]))[1:]}
    assert {label: curve.verdict for label, curve in curves.items()} == {
        "sleeps": "worse at each budget",
        "pays": "better at each budget",
        "does_not": "worse at each budget",
        "lucky": "no difference shown",
        "late": "worse at x0.5, better at x1; the curves cross",
    }
    gain = curves["sleeps"].gains[0]
    assert gain.speed_up is not None and gain.speed_up.value == pytest.approx(1 / 1.5, abs=0.03)


def test_the_report_has_curves_verdicts_and_warnings(sweep, tmp_path):
    race = sweep(pays=runs(better=0.05))
    report = SweepReport(race, tmp_path)
    with patch.object(report, "check", return_value=[]):
        report.make(package_race, "for a sweep", "no matplotlib")
    text = "\n".join([*report.table(120), *report.answers])
    assert "pays: better at each budget" in text and " * " in text and not report.failed
    assert "to 0.695: pays 27.2 s" in text and "; 1.4x [1.2, 1.6] sooner" in text.splitlines()[-1]
    written = json.loads((tmp_path / "race.json").read_text())["tradeoff"]
    assert written["baseline"] == "baseline" and [one["label"] for one in written["curves"]] == ["baseline", "pays"]
    gain = written["curves"][1]["gains"][1]
    assert gain["speed_up"]["high"] is None and gain["reach"][1] == pytest.approx(2.0)  # beyond the longest baseline


def test_a_baseline_of_one_budget_is_warned_of(sweep, tmp_path):
    race = sweep(pays=runs(better=0.05))
    for turn in race.turns:
        if turn.side in ("baseline_x0.5", "baseline_x2"):
            turn.status = "failed"
    text = "\n".join(SweepReport(race, tmp_path).table(None))
    assert "warning: the baseline has one budget" in text and "not measured" in text


def test_a_point_beyond_the_baselines_times_is_strictly_better_or_names_what_to_race(sweep, tmp_path, printed, told):
    sweep(dominates={0.5: [(10.0, 0.9)] * 4}, quick={0.5: [(10.0, 0.5)] * 4}, slow={1.0: [(160.0, 0.6)] * 4})
    curves = {curve.label: curve.verdict for curve in compare_curves(curves_at([tmp_path]))[1:]}
    assert curves == {"dominates": "strictly better", "quick": "not comparable", "slow": "strictly worse"}
    assert "next: a race of baseline at --ratios 0.25 4, to compare there" in printed("compare", tmp_path)
    answer = told("compare", tmp_path, "--quality", 0.65)
    assert answer["best"] == "dominates"
    assert answer["answer"].startswith("to 0.65: dominates at most 10.0 s; baseline 27")


def test_two_runs_of_one_seed_are_refused(sweep, tmp_path):
    sweep()
    shutil.copytree(tmp_path, tmp_path / "again", ignore=shutil.ignore_patterns("again"))
    assert len(curves_at([tmp_path, tmp_path])) == 1, "copies of a log are one run"
    with (tmp_path / "again" / "baseline_x0.5" / "result_0.txt").open("a") as log:
        log.write("another run\n")
    with pytest.raises(UsageError, match="are runs of baseline at budget 0.5 with seed 0; pass one"):
        curves_at([tmp_path])


def test_a_folder_of_sweeps_and_the_lengths_of_a_sweep_are_read_as_the_sweep(sweep, tmp_path):
    race = sweep(pays=runs(better=0.05))
    next(turn for turn in race.turns if turn.side == "pays_x1").status = "failed"
    race.save(tmp_path)
    whole = compare_curves(curves_at([tmp_path]))
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}_folder" / "sweep")
    assert compare_curves(curves_at([tmp_path.parent / f"{tmp_path.name}_folder"])) == whole
    sides = [tmp_path / side for side in ("pays_x1", "pays_x0.5", *(f"baseline_x{r:g}" for r in (2, 0.5, 1)))]
    assert compare_curves(curves_at(sides)) == whole and [gain.seeds for gain in whole[1].gains] == [4, 3]
    other = shutil.copytree(tmp_path / "pays_x0.5", tmp_path.parent / f"{tmp_path.name}_other" / "set")
    for log in other.glob("result_*.txt"):
        log.write_text(f"another run\n{log.read_text()}")
    for paths, place in (([tmp_path, other], 0), ([other, tmp_path], 1)):
        assert [curve.label for curve in curves_at(paths)].index("baseline") == place, "in the order of the paths"
    (alone,) = curves_at([tmp_path / "pays_x0.5"])
    assert (alone.label, [*alone.budgets]) == ("pays", [0.5])


def test_seeds_on_both_sides_of_the_baselines_shortest_run_are_each_compared(sweep, tmp_path):
    """Two seeds are inside the baseline's times; the others, in less time, against its shortest run."""
    inside = ((19.0, 0.7), (20.5, 0.69), (19.5, 0.71), (21.0, 0.7))
    sweep(
        ahead={0.5: inside},
        behind={2.0: [(79.0, 0.7), (81.0, 0.71), (82.0, 0.7), (79.5, 0.69)]},
        slower={0.5: [(time, quality - 0.1) for time, quality in inside]},
    )
    verdicts = {curve.label: curve.verdict for curve in compare_curves(curves_at([tmp_path]))[1:]}
    assert verdicts == {"ahead": "better", "behind": "worse", "slower": "not comparable"}


def test_the_page_of_a_sweep_begins_with_the_verdict_and_a_table(sweep, tmp_path):
    sweep(pays=runs(better=0.05))
    cli.main(["report", str(tmp_path), "--json"])
    page = (tmp_path / "report.html").read_text()
    places = [page.index(text) for text in ("pays: better at each budget", "<table>", "<td>pays</td>", "<figure>")]
    assert places == sorted(places) and page.count("<h2>Environment</h2>") == 1
