"""`timedrun doctor` answers on any machine, `timedrun completion` at TAB."""

import json
import os
import subprocess
import sys

import pytest

from timedrun.cli import main
from timedrun.commands import doctor
from timedrun.commands.parser import VERBS
from timedrun.integrations import fitting_torchvision


def test_it_names_installed_versions_what_is_missing_and_what_cannot_be_used(tmp_path, monkeypatch, capsys):
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


def test_an_extra_that_cannot_be_imported_is_named_with_its_error(tmp_path, monkeypatch, capsys):
    raised = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "broken_vision.py").write_text(raised)
    (tmp_path / "endless.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(doctor, "IMPORT_SECONDS", 1)
    assert doctor.import_error(["json"]) == "" and "within 1 s" in doctor.import_error(["endless"])
    monkeypatch.setattr(doctor, "IMPORT_SECONDS", 60)
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["pytest>=9; extra == 'vision'"])
    monkeypatch.setattr(doctor.metadata, "packages_distributions", lambda: {"broken_vision": ["pytest"]})
    assert main(["doctor", "--json", "--results", str(tmp_path)]) == 0
    values = json.loads(capsys.readouterr().out)
    error = "not usable: RuntimeError: operator torchvision::nms does not exist"
    assert values["packages"]["[vision]"] == f"pytest {pytest.__version__}, {error}"
    assert any("takes both from one index" in warning for warning in values["warnings"])
    versions = {"torch": "2.13.0+cpu"}  # without torchvision: PyPI's would not fit
    monkeypatch.setattr(doctor, "installed", versions.get)
    monkeypatch.setattr(doctor, "extras", dict)
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
    assert doctor.devices().items() >= {"cuda:0": message, "cuda:1": message}.items()


COMPLETE = """
eval "$(timedrun completion bash)"
while read -ra COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_timedrun 2>/dev/null
    echo "${COMPREPLY[@]}"
done
"""


def test_bash_completes_verbs_options_benchmarks_and_configs(tmp_path):
    (tmp_path / "timedrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m timedrun "$@"\n')
    (tmp_path / "timedrun").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    offered = {
        "ra": "race",
        "run image_": "image_classification",
        "run image_classification cifar10_resnet8_b": "cifar10_resnet8_baseline",
        "show method progr": "progressive_resizing",
        "run --threads 2 image_classification methods_": "",
        "race image_classification methods base": "baseline_2022 baseline",
        "show image_classification --diff digits_m": "digits_methods",
        "run image_classification --data cifar10 94_b": "94_baseline",
        "score --target": "--target-test",
    }
    typed = "".join(f"timedrun {words}\n" for words in offered)
    command = ["bash", "-c", COMPLETE]
    done = subprocess.run(command, env=environment, input=typed, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == list(offered.values()), done.stderr


def test_the_script_of_zsh_has_every_verb(capsys):
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert all(f"\n    {verb}:" in script for verbs in VERBS.values() for verb in verbs)
