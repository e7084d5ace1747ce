"""`timedrun doctor` answers on any machine."""

import json

import pytest

from timedrun.cli import main
from timedrun.integrations import fitting_torchvision
from timedrun.preflight import machine_report


def test_it_names_installed_versions_what_is_missing_and_what_cannot_be_used(tmp_path, monkeypatch, capsys):
    required = ["pytest>=9; extra == 'digits'", "no-such-package>=1; extra == 'ffcv'", "torch", "ruff; extra == 'dev'"]
    monkeypatch.setattr("timedrun.preflight.machine_report.metadata.requires", lambda name: required)
    (tmp_path / "file").touch()
    assert main(["doctor", "--json", "--results", str(tmp_path / "file" / "runs")]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["packages"].keys() == {"[digits]", "[ffcv]", *machine_report.OTHER_PACKAGES}
    assert values["packages"]["[digits]"] == f"pytest {pytest.__version__}"
    assert values["packages"]["[ffcv]"] == "no-such-package not installed: pip install 'timedrun[ffcv]'"
    assert "is a file" in values["machine"]["results"]
    assert not list(tmp_path.glob("runs*"))
    assert main(["doctor", "--results", str(tmp_path / "runs")]) == 0
    assert f"{tmp_path / 'runs'} is writable" in capsys.readouterr().out


def test_an_extra_that_cannot_be_imported_is_named_with_its_error(tmp_path, monkeypatch, capsys):
    raised = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "broken_vision.py").write_text(raised)
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine_report, "IMPORT_SECONDS", 1)
    assert machine_report.import_error(["json"]) == "" and "within 1 s" in machine_report.import_error(["endless"])
    monkeypatch.setattr(machine_report, "IMPORT_SECONDS", 60)
    monkeypatch.setattr(machine_report.metadata, "requires", lambda name: ["pytest>=9; extra == 'vision'"])
    monkeypatch.setattr(machine_report.metadata, "packages_distributions", lambda: {"broken_vision": ["pytest"]})
    assert main(["doctor", "--json", "--results", str(tmp_path)]) == 0
    values = json.loads(capsys.readouterr().out)
    error = "not usable: RuntimeError: operator torchvision::nms does not exist"
    assert values["packages"]["[vision]"] == f"pytest {pytest.__version__}, {error}"
    assert any("takes both from one index" in warning for warning in values["warnings"])
    versions = {"torch": "2.13.0+cpu"}  # without torchvision: PyPI's would not fit
    monkeypatch.setattr(machine_report, "installed", versions.get)
    monkeypatch.setattr(machine_report, "extras", dict)
    assert main(["doctor", "--json"]) == 0 and "takes both from one index" in capsys.readouterr().out
    with pytest.raises(ImportError, match="takes both from one index"), fitting_torchvision():
        exec(raised)
    with pytest.raises(RuntimeError, match="another"), fitting_torchvision():
        raise RuntimeError("another")


def test_a_device_that_fails_is_named_with_the_reason(monkeypatch):
    def zeros(*shape: int, device: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.zeros", zeros)
    message = "not usable: CUDA error: out of memory"
    assert machine_report.devices().items() >= {"cuda:0": message, "cuda:1": message}.items()
