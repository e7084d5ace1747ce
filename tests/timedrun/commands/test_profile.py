"""`timedrun profile`: from the command line to table, JSON and trace."""

import json
from pathlib import Path

import pytest

from judging.ground.errors import ExitCode
from timedrun.cli import main

SMOKE = ["profile", "image_classification", "smoke", "--data", "synthetic"]


def test_a_profile_as_json_with_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    options = ["--positions", "2", "--steps", "5", "--skip", "1", "--trace", str(trace), "--json"]
    assert main([*SMOKE, *options]) == ExitCode.OK
    values = json.loads(capsys.readouterr().out)
    assert len(values["positions"]) == 2 and values["evaluation_seconds"] > 0
    parts = values["schedule"]["parts"]
    assert {"loading", "forward", "backward", "optimizer", "method ema", "evaluation"} <= parts.keys()
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    assert values["without_model"]["seconds_per_step"] > 0
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"forward", "backward", "optimizer"} <= names


def test_what_cannot_run_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*SMOKE, "--trace", str(tmp_path / "absent" / "trace.json")]) == ExitCode.USAGE
    assert "does not exist; nothing was measured" in capsys.readouterr().err
    assert main([*SMOKE, "--evaluation.every", "0"]) != ExitCode.OK
    assert "must be at least 1" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(SMOKE) == ExitCode.USAGE
