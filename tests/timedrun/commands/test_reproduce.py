"""`timedrun reproduce`: claims, and runs repeated in child processes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.ground.config_values import digest_of
from judging.pages.score_table import NOTICE
from mlevents import keys, record

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One result of the smoke config."""
    folder = tmp_path_factory.mktemp("original") / "smoke"
    command = [*(sys.executable, "-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic")]
    subprocess.run([*command, "--seed", "3", "--results", folder], env=ENVIRONMENT, check=True, timeout=100)
    return folder


def copied(smoke: Path, folder: Path, number: int, edit: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Result 0 again as result `number`, its config edited; returns its log."""
    folder.mkdir(exist_ok=True)
    log = shutil.copy(smoke / "result_0.txt", folder / f"result_{number}.txt")
    side = shutil.copytree(smoke / "run_0", folder / f"run_{number}")
    if edit:
        values = json.loads((side / "config.json").read_text())
        edit(values)
        (side / "config.json").write_text(json.dumps(values))
    return Path(log)


@pytest.mark.processes
def test_runs_are_repeated_and_tampered_ones_named(smoke, tmp_path, monkeypatch, told):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, out = tmp_path / "set", tmp_path / "again"
    copied(smoke, folder, 0)
    copied(smoke, folder, 1)
    value = record.read(folder / "result_0.txt").final_quality
    forged = copied(smoke, folder, 2)
    forged.write_text(forged.read_text().replace(f'"value": {value}', '"value": 0.75'))
    copied(smoke, folder, 3, lambda values: values.update(global_batch=32))
    cuda = copied(smoke, folder, 4, lambda values: values.update(device="cuda"))
    digest = digest_of(json.loads((folder / "run_4" / "config.json").read_text()))
    cuda.write_text(cuda.read_text().replace(record.read(cuda).value(keys.CONFIG_DIGEST), digest))

    report = told("reproduce", folder, "--run", "--results", out, code=1)
    assert report["notice"] == NOTICE and not report["reproduced"]
    (found,) = report["sets"]
    assert [run["course"] for run in found["runs"]] == ["equal", "equal", "differs", "unknown", "unknown"]
    assert found["runs"][0]["again"]["quality"] == value
    assert found["to_target"] == "equal"
    assert "threads" not in found["differs"]["origin"] and found["quality_sentence"] in found["sentence"]
    announced = [json.loads(line)["entry"] for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert announced.count("announced") == 3 and not (folder / "ledger.jsonl").exists()
    failures = "\n".join(found["failures"])
    assert "the logged quality of run 2 is not reproduced" in failures
    assert "run 3 could not be repeated: run_3/config.json is not the config of result_3.txt" in failures
    assert "run 4 could not be repeated: the run ended with exit code 1" in failures
    assert "no CUDA device for local rank 0" in failures
    assert "set device to cpu in a copy of config.json" in failures
    assert "data" not in found["differs"]["origin"]
    assert json.loads((out / "reproduced.json").read_text())["sets"] == report["sets"]
    assert record.read(out / "set" / "result_1.txt").seed == 3
    origin = json.loads((out / "set" / "run_1" / "provenance.json").read_text())
    assert origin["data"] == json.loads((smoke / "run_0" / "provenance.json").read_text())["data"]
    assert len(origin["data"]["sha256"]) == 64


def test_invalid_requests_are_refused(tmp_path, refused):
    (tmp_path / "taken").mkdir()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "result_0.txt").write_text("")
    (tmp_path / "claims.json").write_text('[{"system": "slow", "benchmark": "resnet", "minutes": "1"}]')
    for message, arguments in {
        "nowhere does not exist": [tmp_path / "nowhere"],
        "nothing to reproduce": [tmp_path / "taken"],
        "holds no result_*.txt": [tmp_path / "taken", "--claims", tmp_path / "claims.json"],
        "nothing to repeat": [tmp_path / "taken", "--run"],
        "never overwritten": [tmp_path / "set", "--run", "--results", tmp_path / "taken"],
        "leave out --claims or --run": [tmp_path / "set", "--run", "--claims", "x"],
    }.items():
        assert message in refused("reproduce", *arguments)


def test_runs_that_cannot_be_repeated_are_named(tmp_path, monkeypatch, printed):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    for number in range(2):
        (tmp_path / "set" / f"result_{number}.txt").write_text("")
    said = printed("reproduce", "set", "--run", code=1)
    assert said.count("has no run_1/config.json, so its settings are unknown") == 2
    assert NOTICE in said
    assert "run_1" not in printed("reproduce", "set", "--run", "--runs", 1, code=1)
    assert [path.name for path in sorted((tmp_path / "runs" / "reproduced").iterdir())] == ["set_1", "set_2"]
