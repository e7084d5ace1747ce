"""Kept models: the files of a finished run, their digests, and that they are evaluated as the log says."""

import hashlib
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from image_classification import configs, train
from image_classification.batches import ImageBatches
from image_classification.datasets import facts
from judging.ground.errors import DataError, UsageError
from mlevents import keys, record
from tests.one_rank import ALONE
from timedrun import cli
from timedrun.evidence.submission.packaging import package as packages
from timedrun.methods import stack
from timedrun.methods.training.precision import Precision
from timedrun.runner.config import digest
from timedrun.runner.run.kept_model import load_model

SMOKE = ("run", "image_classification", "smoke", "--data", "synthetic", "--keep-model", "--results")
safetensors = pytest.importorskip("safetensors.torch", reason="needs timedrun[train]")


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run with a moving average, and with a layer that a method puts in place of another."""
    folder = tmp_path_factory.mktemp("reached")
    assert cli.main([*SMOKE, str(folder)]) == 0
    return folder


@pytest.mark.parametrize("missed", [False, True])
def test_the_evaluated_weights_of_a_finished_run_have_the_quality_of_its_log(missed, reached, tmp_path):
    folder = tmp_path if missed else reached
    if missed:
        assert cli.main([*SMOKE, str(folder), "--evaluation.target", "0.999"]) == 3
    side = folder / "run_0"
    files = json.loads((side / "provenance.json").read_text())["model"]
    assert {*files} == {"model.safetensors", "run_config.json"}
    for name, sha256 in files.items():
        assert hashlib.sha256((side / "model" / name).read_bytes()).hexdigest() == sha256
    config = configs.synthetic_smoke()
    with ImageBatches(config, None, ALONE, stack(*config.methods)) as batches:
        expected, precision = facts(config.data, None).eval_samples, Precision("fp32", ALONE.device)
        quality = train.accuracy(load_model(side / "model"), batches, precision, ALONE, expected)
    assert quality == record.read(folder / "result_0.txt").all(keys.EVAL_ACCURACY)[-1].value
    assert cli.main(["check", str(folder / "result_0.txt"), "--no-official"]) == int(missed)


def test_a_package_has_the_models_if_it_is_asked_for_them_and_they_are_those_of_the_runs(
    reached, tmp_path, monkeypatch, refused
):
    monkeypatch.setattr(packages, "package", partial(packages.package, check=False))
    shutil.copytree(reached, tmp_path / "set")
    words, kept = ("package", tmp_path / "set", "--out"), "runs/run_*/model/model.safetensors"
    for name, models in (("without", []), ("with", ["--models"])):
        refused(*words, tmp_path / name, *models, code=1)  # since it is not checked
    assert [len([*(tmp_path / name).rglob(kept)]) for name in ("without", "with")] == [0, 1]
    with (tmp_path / "set/run_0/model/model.safetensors").open("ab") as file:
        file.write(b"changed")
    said = refused(*words, tmp_path / "changed", "--models", code=1)
    assert "run_0/model/model.safetensors: changed" in said


def test_a_diverged_run_keeps_nothing(tmp_path):
    assert cli.main([*SMOKE, str(tmp_path), "--optimizer.peak-lr", "1e30", "--evaluation.target", "0.99"]) == 1
    side = tmp_path / "run_0"
    assert not (side / "model").exists() and "model" not in json.loads((side / "provenance.json").read_text())


def test_keeping_the_model_changes_no_digest_and_a_failure_to_keep_it_fails_no_run(tmp_path, monkeypatch, capsys):
    config = configs.synthetic_smoke()
    assert digest(replace(config, keep_model=True)) == digest(config)
    monkeypatch.setattr(safetensors, "save_file", lambda *_, **__: 1 / 0)
    assert cli.main([*SMOKE, str(tmp_path)]) == 0
    assert "the model was not kept: ZeroDivisionError" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run_0").iterdir() if "model" in path.name] == []


def test_what_is_no_kept_model_or_another_ones_weights_is_refused(reached, tmp_path):
    with pytest.raises(UsageError, match=r"has no run_config.json, so it keeps no model"):
        load_model(tmp_path)
    folder = shutil.copytree(reached / "run_0" / "model", tmp_path / "model")
    values = json.loads((folder / "run_config.json").read_text())
    (folder / "run_config.json").write_text(json.dumps(values | {"model": {**values["model"], "widths": [16, 24]}}))
    with pytest.raises(DataError, match="does not fit the network of its config"):
        load_model(folder)
