"""Hyper-parameters of the log: those that the optimizer uses, under MLPerf's names."""

from dataclasses import replace

import pytest
from mlperf_logging.mllog import constants
from torch import nn

from language_model.gpt.build import build_gpt_optimizer
from language_model.gpt.configs import shakespeare_modern
from language_model.gpt.model import build_model
from mlevents import record
from mlevents.runlog import RunLog
from mlevents.runlog.protocol import Protocol
from timedrun.config import OptimizerConfig
from timedrun.methods import GradientClipping
from timedrun.run.run_info import RunInfo, optimizer_info, settings_of
from timedrun.training.optim import build_optimizer

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


def test_a_gpt_by_muon_logs_adamw_of_the_other_parameters():
    config = shakespeare_modern()
    optimizer = build_gpt_optimizer(config.optimizer, build_model(config.model, seed=1), adam_beta1=0.6)
    found = optimizer_info(config.optimizer, optimizer)
    assert found["opt_other_name"] == "adamw" and found[constants.OPT_ADAMW_BETA_1] == 0.6
    assert found["opt_muon_momentum"] == config.optimizer.momentum and "sgd_opt_momentum" not in found


@pytest.mark.parametrize(("by", "logged"), [("norm", [0.5]), ("value", [0.0])])
def test_the_norm_to_which_a_method_clips_is_logged(tmp_path, by, logged):
    log = RunLog(tmp_path / "result_0.txt")
    config = replace(shakespeare_modern(), methods=(GradientClipping(by=by, threshold=0.5),))
    info: RunInfo = {"train_samples": 1, "eval_samples": 1, "hyperparameters": {constants.OPT_GRADIENT_CLIP_NORM: 0.0}}
    Protocol(log).describe(settings_of(config, info))
    log.close()
    found = record.read(tmp_path / "result_0.txt").all(constants.OPT_GRADIENT_CLIP_NORM)
    assert [event.value for event in found] == logged
