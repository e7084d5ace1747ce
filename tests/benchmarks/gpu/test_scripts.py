"""Scripts for a GPU run whole on a CPU with --tiny, and measure nothing once a check of correctness has failed."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.block import Block
from benchmarks.gpu.races import RACES
from benchmarks.gpu.resnet50 import projected_minutes
from timedrun.benchmark import find
from timedrun.race.sides import sides_of

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[3]


def run(name: str, out: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Run a script with --tiny; return its JSON values and its output."""
    command = [sys.executable, "-m", f"benchmarks.gpu.{name}", *options, "--tiny", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.json")
    return json.loads(path.read_text()), done.stdout


def passed(values: dict[str, Any]) -> list[str]:
    return [name for name, check in values["checks"].items() if check["passed"]]


def test_the_ladder_compares_with_transformers_before_it_times(tmp_path: Path) -> None:
    rungs = ["HF eager", "+ masked head, subset"]
    values, output = run("bert_ladder", tmp_path, "--rungs", *rungs)
    assert len(passed(values)) == 4 and "+ masked head, subset: fp32 as transformers" in passed(values)
    rows = values["BERT-Large"]["rows"]
    assert [row["given"] for row in rows] == rungs
    assert rows[1]["operations_per_step"] < rows[0]["operations_per_step"]
    assert rows[0]["tokens_per_sample"] == pytest.approx(64 * 254 / 512, rel=0.05)
    assert output.index("fp32 as transformers") < output.index("steps of 2 configs") < output.index("useful work")


def test_resnet_is_compared_with_fp64_and_projected(tmp_path: Path) -> None:
    values, output = run("resnet50", tmp_path)
    assert len(passed(values)) == 6
    assert values["projected_minutes"].keys() == {"baseline", "methods"}
    assert {row["given"] for row in values["32 px"]["rows"]} >= {"baseline", "methods, compiled"}
    assert output.rindex("images per second") > output.rindex("32 px: steps")


def test_a_race_is_held_to_both_checkers(tmp_path: Path) -> None:
    values, _ = run("races", tmp_path, "images")
    assert passed(values) == ["the race ended", "strict checks pass", "official checks pass"]
    assert values["checks"]["official checks pass"]["found"]["logs"] == 2


def test_the_loops_are_compared(tmp_path: Path) -> None:
    values, _ = run("overhead", tmp_path)
    assert len(values["loop_overhead"]["rounds"]) == 2 and values["loop_overhead"]["device"] == "cpu"


@pytest.mark.parametrize("name", RACES)
def test_the_configs_and_overrides_of_every_race_exist(name: str) -> None:
    race = RACES[name]
    sides = sides_of(find(race.benchmark), list(race.configs), race.data, list(race.overrides))
    assert [side.config.precision for side in sides] == [sides[0].config.precision] * len(race.configs)


def test_a_failed_check_ends_the_script_and_is_written(tmp_path: Path) -> None:
    block = Block("some", Namespace(tiny=True, out=tmp_path))
    with pytest.raises(SystemExit, match="nothing after it was measured"):
        block.check("equal", False, {"apart": 1.0})
    assert json.loads((tmp_path / "some.json").read_text())["checks"]["equal"]["found"] == {"apart": 1.0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no CUDA device; nothing was measured"):
        Block("some", Namespace(tiny=False, out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_the_projection_counts_the_pixels_of_each_epoch() -> None:
    per_pixel = {size: 1e9 / size**2 for size in (88, 128, 160, 176, 224)}
    baseline, methods = (projected_minutes(name, per_pixel) for name in ("baseline", "methods"))
    assert baseline == pytest.approx(84 * 1_281_167 * 224**2 / 1e9 / 60)
    # 88 px for 40 % of 27 epochs, 176 px for 20 %, in between in steps: a mean of 0.33 of 224 px (docs of the recipe).
    assert methods / baseline == pytest.approx(27 / 84 * 0.33, rel=0.06)
