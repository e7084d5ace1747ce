"""Gated linear units in transformers' BERT: the formula, the width, and training."""

from types import ModuleType

import torch
from torch import nn

from timedrun.methods import GatedLinearUnits, stack


def bert() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=30, **shape)).eval()


def test_the_feed_forward_layer_computes_the_formula(torchvision: ModuleType) -> None:
    model = stack(GatedLinearUnits()).model(bert()).eval()
    layer = model.bert.encoder.layer[0]  # type: ignore[union-attr, index]
    x = torch.randn(2, 5, 16)
    gate, up, out = layer.intermediate.gate.weight, layer.intermediate.up.weight, layer.output  # type: ignore[union-attr]
    gated = x @ gate.T
    hidden = 0.5 * gated * (1 + torch.erf(gated / 2**0.5)) * (x @ up.T)
    inner = hidden @ out.dense.weight.T + out.dense.bias + x  # type: ignore[union-attr, operator]
    mean, variance = inner.mean(-1, keepdim=True), inner.var(-1, correction=0, keepdim=True)
    torch.testing.assert_close(layer.feed_forward_chunk(x), (inner - mean) / (variance + 1e-12).sqrt())  # type: ignore[operator, union-attr]


def test_two_thirds_of_the_width_has_about_as_many_parameters(torchvision: ModuleType) -> None:
    plain, gated = bert(), stack(GatedLinearUnits(iso_parameters=True)).model(bert())
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (plain, gated)]
    assert gated.bert.encoder.layer[1].intermediate.up.out_features == 32  # type: ignore[union-attr, index]
    assert counts[0] - 2 * 48 == counts[1]  # without the biases of the first map


def test_it_trains_and_is_in_the_optimizer(torchvision: ModuleType) -> None:
    speed = stack(GatedLinearUnits())
    model = speed.model(bert())
    speed.require_in(torch.optim.SGD(model.parameters(), lr=0.1))
    tokens = torch.randint(30, (2, 8))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    assert 3 < float(loss) < 4  # ln 30 = 3.4
    for name, parameter in model.named_parameters():
        if "intermediate" in name:
            assert parameter.grad is not None and parameter.grad.any()


def test_robertas_layers_are_gated_too(torchvision: ModuleType) -> None:
    import transformers

    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=30, **shape))
    speed = stack(GatedLinearUnits())
    assert speed.model(model)(input_ids=torch.randint(2, 30, (2, 8))).logits.shape == (2, 8, 30)
    assert speed.report == ["gated_linear_units: 2 feed-forward layers"]
