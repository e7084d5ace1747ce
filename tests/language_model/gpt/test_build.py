"""Muon with AdamW for the other parameters: each group takes the step of its optimizer."""

from dataclasses import replace

import pytest

from language_model.gpt.build import build
from language_model.gpt.configs import shakespeare_modern
from language_model.gpt.datasets import declared
from language_model.gpt.model import Decoder
from tests.one_rank import ALONE, CPU

MUON = replace(shakespeare_modern().optimizer, weight_decay=0.01)


@pytest.mark.parametrize("nesterov", [True, False])
def test_hidden_matrices_take_muons_step_and_the_rest_adamws_with_the_configs_numbers(nesterov):
    settings = {"optimizer": replace(MUON, nesterov=nesterov), "adam_beta1": 0.8, "adam_every": 2, "precision": "bf16"}
    config = replace(shakespeare_modern(), **settings)
    small = replace(config.model, layers=1, hidden=8, heads=2, context=6, vocabulary=11)
    parts = build(replace(config, model=small), ALONE, declared(config), CPU)
    (hidden, rest), model = parts.optimizer.param_groups, parts.model
    assert isinstance(model, Decoder)
    assert [id(p) for p in hidden["params"]] == [id(p) for p in model.hidden_matrices()] and len(hidden["params"]) == 6
    assert {id(p) for p in rest["params"]} == {id(p) for p in model.parameters()} - {id(p) for p in hidden["params"]}
    of_muon = {"rule": "muon", "lr": MUON.peak_lr, "momentum": MUON.momentum, "nesterov": nesterov, "bf16": True}
    of_adamw = {"rule": "adamw", "lr": MUON.other_lr, "betas": (0.8, MUON.beta2), "eps": MUON.epsilon, "every": 2}
    assert hidden.items() >= (of_muon | {"weight_decay": 0.01}).items()
    assert rest.items() >= (of_adamw | {"weight_decay": 0.0}).items()
