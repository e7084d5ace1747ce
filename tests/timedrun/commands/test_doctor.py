"""`timedrun doctor` answers on any machine."""

import json
from pathlib import Path

import pytest

from timedrun.cli import main
from timedrun.commands import doctor


def test_it_names_installed_versions_what_is_missing_and_what_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    required = ["pytest>=9; extra == 'digits'", "no-such-package>=1; extra == 'ffcv'", "torch", "ruff; extra == 'dev'"]
    monkeypatch.setattr("timedrun.commands.doctor.metadata.requires", lambda name: required)
    (tmp_path / "file").touch()
    assert main(["doctor", "--json", "--results", str(tmp_path / "file" / "runs")]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["packages"].keys() == {"[digits]", "[ffcv]", *doctor.OTHER_PACKAGES}
    assert values["packages"]["[digits]"] == f"pytest {pytest.__version__}"
    assert values["packages"]["[ffcv]"] == "no-such-package not installed: pip install 'timedrun[ffcv]'"
    assert "is a file" in values["machine"]["results"]
    assert not list(tmp_path.glob("runs*"))
    assert main(["doctor", "--results", str(tmp_path / "runs")]) == 0
    assert f"{tmp_path / 'runs'} is writable" in capsys.readouterr().out


def test_a_device_that_fails_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(*shape: int, device: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.zeros", zeros)
    message = "not usable: CUDA error: out of memory"
    assert doctor.devices() == {"cuda:0": message, "cuda:1": message}
