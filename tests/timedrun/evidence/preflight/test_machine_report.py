"""`timedrun doctor` answers on any machine."""

import pytest

from timedrun.evidence.preflight import machine_report
from timedrun.methods.integrations import fitting_torchvision


def test_it_names_installed_versions_what_is_missing_and_what_cannot_be_used(tmp_path, monkeypatch, told, printed):
    required = ["pytest>=9; extra == 'digits'", "no-such-package>=1; extra == 'ffcv'", "torch", "ruff; extra == 'dev'"]
    monkeypatch.setattr("timedrun.evidence.preflight.machine_report.metadata.requires", lambda name: required)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    values = told("doctor")
    assert values["packages"].keys() == {"[digits]", "[ffcv]", *machine_report.OTHER_PACKAGES}
    assert values["packages"]["[digits]"] == f"pytest {pytest.__version__}"
    assert values["packages"]["[ffcv]"] == "no-such-package not installed: pip install 'timedrun[ffcv]'"
    assert "is a file" in values["machine"]["results"]
    (tmp_path / "runs").unlink()
    assert "runs is writable" in printed("doctor") and not list(tmp_path.iterdir())


def test_an_extra_that_cannot_be_imported_is_named_with_its_error(tmp_path, monkeypatch, told):
    raised = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "broken_vision.py").write_text(raised)
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine_report, "IMPORT_SECONDS", 1)
    assert machine_report.import_error(["json"]) == "" and "within 1 s" in machine_report.import_error(["endless"])
    monkeypatch.setattr(machine_report, "IMPORT_SECONDS", 60)
    monkeypatch.setattr(machine_report.metadata, "requires", lambda name: ["pytest>=9; extra == 'vision'"])
    monkeypatch.setattr(machine_report.metadata, "packages_distributions", lambda: {"broken_vision": ["pytest"]})
    values = told("doctor")
    error = "not usable: RuntimeError: operator torchvision::nms does not exist"
    assert values["packages"]["[vision]"] == f"pytest {pytest.__version__}, {error}"
    assert any("takes both from one index" in warning for warning in values["warnings"])
    versions = {"torch": "2.13.0+cpu"}  # without torchvision: PyPI's would not fit
    monkeypatch.setattr(machine_report, "installed", versions.get)
    monkeypatch.setattr(machine_report, "extras", dict)
    assert "takes both from one index" in str(told("doctor")["warnings"])
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
