"""`timedrun profile`: from the command line to table, JSON and trace."""

import json
from pathlib import Path

import pytest

from timedrun.cli import main
from timedrun.commands.profile import show_compared
from timedrun.errors import ExitCode

SMOKE = ["profile", "image_classification", "smoke", "--data", "synthetic"]


def test_a_profile_as_json_with_its_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    options = ["--positions", "2", "--steps", "5", "--skip", "1", "--trace", str(trace), "--json"]
    assert main([*SMOKE, *options]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert len(found["positions"]) == 2 and found["evaluation_seconds"] > 0
    parts = found["schedule"]["parts"]
    assert {"loading", "forward", "backward", "optimizer", "method ema", "evaluation"} <= parts.keys()
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1)
    assert found["without_model"]["seconds_per_step"] > 0
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"forward", "backward", "optimizer"} <= names


def test_what_cannot_run_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*SMOKE, "--trace", str(tmp_path / "absent" / "trace.json")]) == ExitCode.USAGE
    assert "does not exist; nothing was measured" in capsys.readouterr().err
    assert main([*SMOKE, "--against", "smoke-blurpol"]) == ExitCode.USAGE
    assert "has no method 'blurpol'" in capsys.readouterr().err
    assert main([*SMOKE, "--evaluation.every", "0"]) != ExitCode.OK
    assert "must be at least 1" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(SMOKE) == ExitCode.USAGE


def test_configs_measured_in_turns_are_compared_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    base = {"given": "methods", "error": None, "seconds_per_step": 0.004, "spread": (0.003, 0.005)}
    gain = {"ratio": 1.25, "low": 1.2, "high": 1.3, "shown": True}
    faster = {**base, "given": "methods-ema", "seconds_per_step": 0.0032, "speed_up": gain}
    show_compared([base, faster, {"given": "broken", "error": "MemoryError: none left"}])
    _, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert rows[0].split() == ["methods", "4.00", "3.00", "-", "5.00", "-"]
    assert rows[1].split() == ["methods-ema", "3.20", "3.00", "-", "5.00", "1.25x", "[1.20,", "1.30]", "faster"]
    assert rows[2].endswith("failed: MemoryError: none left")
