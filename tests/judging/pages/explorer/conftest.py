"""Result sets of a race and of a package, with hostile names, as the explorer shows them."""

import json
import tarfile
from pathlib import Path

import pytest

from mlevents import keys
from tests.judging.conftest import WriteRun, log_loads
from timedrun import cli
from timedrun.racing.race_file import Budget, Race, Turn

HOSTILE = '</script><img src=x onerror="document.title=1">\u202e{{data}}'


@pytest.fixture
def results(tmp_path: Path, write_run: WriteRun) -> Path:
    """`results/baseline` and `results/fast` on digits, and a package whose submitter has a hostile name."""
    folder = tmp_path / "results"
    small = {keys.DATASET: "digits", keys.QUALITY_TARGET: 0.75, keys.TRAIN_SAMPLES: 1000}
    for number in range(3):
        write_run(folder / "baseline", number, minutes=10.0 + number, **small | {keys.CONFIG_NAME: "digits_baseline"})
        fast = {keys.CONFIG_NAME: "digits_methods", "qualities": (0.5, 0.8), keys.SEED: number + 11}
        write_run(folder / "fast", number, minutes=5.0 + number, start=1.9e9 + number * 1e5, **small | fast)
    formula = small | {keys.CONFIG_NAME: "=1+1", "qualities": (0.2, 0.3), "platform": HOSTILE}
    write_run(folder / "missed", 0, minutes=2.0, start=1.95e9, **formula)
    submitter = folder / "v2.0" / "Example Inc"
    write_run(submitter / "results" / "box" / "resnet", 0, minutes=30.0, start=1.7e9)
    (submitter / "systems").mkdir()
    described = {
        "number_of_nodes": "2",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA A100-SXM4-80GB",
    }
    (submitter / "systems" / "box.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def swept_page(tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page of an archived sweep in which `fast` has the baseline's qualities in half of its time, and energies."""
    monkeypatch.chdir(tmp_path)
    sweep, budgets, turns = tmp_path / "results" / "sweep", {}, []
    for config, factor in (("base", 1.0), ("fast", 0.5)):
        for ratio, minutes, quality in ((0.5, 4.0, 0.5), (1.0, 8.0, 0.6), (2.0, 16.0, 0.7)):
            side = f"{config}_x{ratio:g}"
            budgets[side] = Budget(curve=config, ratio=ratio)
            for seed in range(3):
                small = {keys.DATASET: "digits", keys.CONFIG_NAME: side, keys.SEED: seed}
                small |= {"qualities": (quality + seed / 1000,), keys.QUALITY_TARGET: 0.65}
                log = write_run(sweep / side, seed, minutes=factor * minutes * (1 + seed / 100), **small)
                log_loads(log, {"cpu_joules": 100 * factor * minutes})
                turns.append(Turn(side=side, number=seed, seed=seed, status="finished"))
    race = Race(benchmark="digits", runs=3, sides={side: side for side in budgets}, budgets=budgets, turns=turns)
    race.save(sweep)
    with tarfile.open("results/logs.tar.xz", "w:xz") as archive:
        archive.add(sweep, "sweep")
    sweep.rename(tmp_path / "sweep")
    assert cli.main(["explore", "results", "--price", "6", "--out", "page.html"]) == 0
    return tmp_path / "page.html"
