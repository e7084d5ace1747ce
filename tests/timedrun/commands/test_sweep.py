"""`timedrun sweep`: its plan and its refusals; tests/timedrun/race/test_sweep.py has the report."""

import json
from pathlib import Path

import pytest

from image_classification.configs import ImageRunConfig
from timedrun import cli
from timedrun.analysis.profiled_run import StepPlan
from timedrun.analysis.step_times import StepTimes
from timedrun.commands import sweep as commands


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 10 ms and evaluations of 1 s; a config with a rate of 9 fails."""

    def measured(
        benchmark: str, configs: dict[str, ImageRunConfig], plan: StepPlan, **_: object
    ) -> tuple[dict[str, StepTimes], dict[str, str]]:
        ((name, config),) = configs.items()
        if config.optimizer.peak_lr == 9:
            return {}, {name: "ValueError: planted"}
        return {name: StepTimes((0.5,), ((0.01,),), 100 * config.total_epochs, 1.0)}, {}

    monkeypatch.setattr(commands, "step_times", measured)


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert cli.main(["sweep", "image_classification", *words, "--dry-run", "--json"]) == 0
    values: dict[str, object] = json.loads(capsys.readouterr().out)
    return values


def test_a_dry_run_prints_curves_lengths_and_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = plan(capsys, "baseline", "baseline+ema(half_life=8)", "--ratios", "0.5", "1", "--baseline-ratios", "2")
    assert found["curves"] == {"digits_baseline": ["x0.5", "x1", "x2"], "baseline+ema(half_life=8)": ["x0.5", "x1"]}
    assert found["runs"] == 15 and found["failed"] == {}
    epochs = 3 + 6 + 12 + 3 + 6
    assert found["seconds"] == pytest.approx(3 * (epochs * 100 * 0.01 + 5 * 1.0))


def test_a_dry_run_names_a_config_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "image_classification", "baseline", "methods", "--b.optimizer.peak-lr", "9", "--dry-run"]
    assert cli.main(words) == 1
    said = capsys.readouterr()
    assert "methods optimizer.peak-lr 9 fails: ValueError: planted" in said.err and "12 runs, 3 of each" in said.out


def test_an_ablation_has_the_bare_config_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "methods", "--ablate", "--base", "baseline", "--ratios", "1", "--runs", "1")
    curves = found["curves"]
    assert isinstance(curves, dict)
    names = list(curves)
    assert names[:2] == ["digits_baseline", "digits_methods"] and "digits_methods-blurpool" in names
    assert "digits_baseline+ema" in names and found["runs"] == len(names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["image_classification", "baseline", "--ratios", "1"], "is `timedrun run --runs N`"),
        (["image_classification", "baseline", "--ratios", "0.01", "1"], "at 0.01 of its schedule"),
        (["--dry-run"], "name a benchmark and configs"),
        (["image_classification", "baseline", "--dry-run", "--resume", "here"], "leave out --resume"),
    ],
)
def test_what_is_no_sweep_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", *words]) == 2
    assert message in capsys.readouterr().err
