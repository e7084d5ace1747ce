"""What a run records of itself: image, identity of the data, hyper-parameters that the optimizer uses."""

import json
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from mlperf_logging.mllog import constants
from torch import nn

from image_classification.configs import imagenet_baseline, synthetic_smoke
from judging.ground.errors import UsageError
from language_model.gpt.configs import shakespeare_modern
from timedrun.methods import GradientClipping
from timedrun.methods.training.optim import build_optimizer
from timedrun.runner.benchmark import find
from timedrun.runner.config import OptimizerConfig
from timedrun.runner.run import origin
from timedrun.runner.run.run_info import RunInfo, optimizer_info, settings_of

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("given", "digest"),
    [
        ("", None),
        *((text, DIGEST) for text in (DIGEST, f"registry.internal:5000/team/image@{DIGEST}", f" {DIGEST}\n")),
        *((text, UsageError) for text in ("latest", "sha256:12", DIGEST.upper(), f"x{DIGEST}", f"{DIGEST}0")),
    ],
)
def test_a_digest_is_kept_without_its_registry_and_an_invalid_one_is_refused(given, digest, monkeypatch):
    monkeypatch.setenv(origin.IMAGE_DIGEST, given)
    refused = pytest.raises(UsageError, match="TIMEDRUN_IMAGE_DIGEST is .* not a digest")
    with refused if digest is UsageError else nullcontext():
        assert origin.image_digest() == digest
    monkeypatch.delenv(origin.IMAGE_DIGEST)
    assert origin.image_digest() is None


def test_the_datas_identity_is_added_to_what_is_known_already(tmp_path):
    path = tmp_path / "provenance.json"
    path.write_text(json.dumps({"commit": "abc", "data": None}))
    origin.add_data(path, find("image_classification"), synthetic_smoke(), None, None)
    values = json.loads(path.read_text())
    assert values["commit"] == "abc" and values["data"]["name"] == "synthetic"
    assert len(values["data"]["sha256"]) == 64
    assert values["data"]["of"].startswith("counts and shapes")


def test_data_without_a_digest_are_unknown_with_a_reason_that_names_no_folder(tmp_path):
    found = origin.data_identity(find("image_classification"), imagenet_baseline(), tmp_path)
    assert found == {"name": "imagenet", "sha256": None, "of": "unknown: DataError"}
    found = origin.data_identity(MagicMock(**{"hook.return_value": None}), synthetic_smoke(), None)
    assert found == {"name": "synthetic", "sha256": None, "of": "unknown: the benchmark has no data_digest"}


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_no_failure_of_the_digest_fails_a_finished_run(error, tmp_path, monkeypatch, capsys):
    path, benchmark = tmp_path / "p.json", MagicMock()
    path.write_text("{}")
    benchmark.hook.return_value.side_effect = error
    origin.add_data(path, benchmark, synthetic_smoke(), None, "abc")
    values = json.loads(path.read_text())
    assert values["data"]["of"] == f"unknown: {error.__name__}" and values["final_state"]["sha256"] == "abc"
    monkeypatch.setattr(origin, "read_json", MagicMock(side_effect=error))
    origin.add_data(path, benchmark, synthetic_smoke(), None, None)
    assert f"could not be added ({error.__name__})" in capsys.readouterr().err


ADAMW = {constants.OPT_ADAMW_BETA_1: 0.7, constants.OPT_ADAMW_BETA_2: 0.98, constants.OPT_ADAMW_EPSILON: 1e-6}
MUON = {"opt_muon_momentum": 0.7, "opt_muon_iterations": 3, "opt_other_name": "sgd", "opt_other_momentum": 0.7}
LAMB = {constants.OPT_LAMB_BETA_1: 0.7, constants.OPT_LAMB_BETA_2: 0.98, constants.OPT_LAMB_EPSILON: 1e-6}
CONFIG = OptimizerConfig(
    kind="sgd", peak_lr=0.5, momentum=0.7, weight_decay=0.1, beta2=0.98, epsilon=1e-6, other_lr=0.3
)


@pytest.mark.parametrize(
    ("kind", "fused", "own"),
    [
        ("sgd", False, {"sgd_opt_momentum": 0.7}),
        ("decoupled_sgd", False, {"sgd_opt_momentum": 0.7}),
        *((kind, fused, ADAMW) for kind in ("adamw", "decoupled_adamw") for fused in (False, True)),
        ("muon", False, MUON | {"opt_other_base_learning_rate": 0.3}),
        ("lamb", False, LAMB | {constants.OPT_GRADIENT_CLIP_NORM: 1.0}),
    ],
)
def test_an_optimizer_logs_its_own_hyperparameters_and_no_others(kind, fused, own):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    config = replace(CONFIG, kind=kind, newton_schulz_iterations=3)
    found = optimizer_info(config, build_optimizer(config, model, fused=fused))
    decay = constants.OPT_LAMB_WEIGHT_DECAY if kind == "lamb" else constants.OPT_WEIGHT_DECAY  # of the closed division
    assert found == {constants.OPT_NAME: kind, constants.OPT_BASE_LR: 0.5, decay: 0.1} | own


@pytest.mark.parametrize(("by", "logged"), [("norm", 0.5), ("value", 0.0)])
def test_the_norm_to_which_a_method_clips_is_logged(by, logged):
    config = replace(shakespeare_modern(), methods=(GradientClipping(by=by, threshold=0.5),))
    info: RunInfo = {"train_samples": 1, "eval_samples": 1, "hyperparameters": {constants.OPT_GRADIENT_CLIP_NORM: 0.0}}
    assert settings_of(config, info)[constants.OPT_GRADIENT_CLIP_NORM] == logged
