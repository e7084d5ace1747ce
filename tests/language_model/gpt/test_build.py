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
from timedrun.training.optim import Muon

MUON = replace(shakespeare_modern().optimizer, weight_decay=0.01)


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(GptConfig(implementation="modern", layers=1, hidden=8, heads=2, context=6, vocabulary=11, dropout=0))


def gradients(parameters: list[torch.Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("nesterov", [True, False])
def test_hidden_matrices_take_muons_step_and_the_rest_torchs_adamw(nesterov):
    ours, theirs = decoder(), decoder()
    optimizer = build_gpt_optimizer(replace(MUON, nesterov=nesterov), ours, adam_beta1=0.8, adam_every=2, bf16=True)
    hidden = theirs.hidden_matrices()
    rest = [p for p in theirs.parameters() if not any(p is matrix for matrix in hidden)]
    assert len(hidden) == 6 and len(rest) == 5
    muon = Muon(hidden, MUON.peak_lr, MUON.momentum, nesterov, weight_decay=0.01, bf16=True)
    adamw = torch.optim.AdamW(rest, MUON.other_lr, (0.8, MUON.beta2), MUON.epsilon, weight_decay=0.0)
    for step in range(4):
        sums = [parameter.grad for parameter in rest] if step % 2 else []
        for model in (ours, theirs):
            gradients(list(model.parameters()), step)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        optimizer.step()
        muon.step()
        for parameter, earlier in zip(rest, sums, strict=bool(sums)):
            parameter.grad = parameter.grad + earlier
        if sums:
            adamw.step()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, msg=name)


def test_other_kinds_are_timedruns_own_over_all_parameters():
    optimizer = build_gpt_optimizer(shakespeare_baseline().optimizer, model := decoder(), adam_beta1=0.1)
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.99)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_muon_for_a_model_without_known_hidden_matrices_is_refused():
    with pytest.raises(UsageError, match=r"--model\.implementation modern"):
        build_gpt_optimizer(MUON, nn.Linear(2, 2), adam_beta1=0.9)
