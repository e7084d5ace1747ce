"""The parts of a BERT run: its optimizer."""

from dataclasses import replace

import torch

from language_model import configs
from language_model.build import build
from language_model.datasets import declared
from tests.one_rank import ALONE
from timedrun.runner.config import OptimizerConfig


def test_muon_trains_the_matrices_of_layers_and_head_and_adamw_the_rest():
    muon = OptimizerConfig(kind="muon", peak_lr=0.02, other_lr=4e-3, other_momentum=0.8, beta2=0.98)
    speed = replace(configs.CPU_SPEED_UPS, fused_qkv=False, fused_optimizer=False)
    config = replace(configs.topics_methods(), optimizer=muon, speed=speed)
    assert not config.problems()
    parts = build(config, ALONE, declared(config), torch.device("meta"))
    names = {id(parameter): name for name, parameter in parts.model.named_parameters()}
    matrices, rest = ({names[id(parameter)] for parameter in group["params"]} for group in parts.optimizer.param_groups)
    assert all(name.startswith(("layer.", "head.transform.dense.")) and name.endswith(".weight") for name in matrices)
    assert len(matrices) == 6 * config.architecture.layers + 1
    assert matrices | rest == set(names.values())
    assert [group["rule"] for group in parts.optimizer.param_groups] == ["muon", "adamw"]
    assert parts.optimizer.param_groups[1]["betas"] == (0.8, 0.98)
