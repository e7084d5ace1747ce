"""Muon with AdamW for the other parameters: each group takes the step of its optimizer."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from judging.ground.errors import UsageError
from language_model.gpt.build import build_gpt_optimizer
from language_model.gpt.configs import shakespeare_baseline, shakespeare_modern
from language_model.gpt.model import Decoder
from language_model.gpt.settings import GptConfig

MUON = replace(shakespeare_modern().optimizer, weight_decay=0.01)


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(GptConfig(implementation="modern", layers=1, hidden=8, heads=2, context=6, vocabulary=11, dropout=0))


@pytest.mark.parametrize("nesterov", [True, False])
def test_hidden_matrices_take_muons_step_and_the_rest_adamws_with_the_configs_numbers(nesterov):
    model, settings = decoder(), replace(MUON, nesterov=nesterov)
    hidden, rest = build_gpt_optimizer(settings, model, adam_beta1=0.8, adam_every=2, bf16=True).param_groups
    assert [id(p) for p in hidden["params"]] == [id(p) for p in model.hidden_matrices()] and len(hidden["params"]) == 6
    assert {id(p) for p in rest["params"]} == {id(p) for p in model.parameters()} - {id(p) for p in hidden["params"]}
    of_muon = {"rule": "muon", "lr": MUON.peak_lr, "momentum": MUON.momentum, "nesterov": nesterov, "bf16": True}
    of_adamw = {"rule": "adamw", "lr": MUON.other_lr, "betas": (0.8, MUON.beta2), "eps": MUON.epsilon, "every": 2}
    assert hidden.items() >= (of_muon | {"weight_decay": 0.01}).items()
    assert rest.items() >= (of_adamw | {"weight_decay": 0.0}).items()


def test_other_kinds_are_timedruns_own_over_all_parameters():
    optimizer = build_gpt_optimizer(shakespeare_baseline().optimizer, model := decoder(), adam_beta1=0.1)
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.99)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_muon_for_a_model_without_known_hidden_matrices_is_refused():
    with pytest.raises(UsageError, match=r"--model\.implementation modern"):
        build_gpt_optimizer(MUON, nn.Linear(2, 2), adam_beta1=0.9)
