"""The baseline has the loss, predictions and weights of transformers' model, on padded batches only."""

import sys
from dataclasses import replace

import pytest
import torch

from judging.ground.errors import UsageError
from language_model.model import ReferenceBert, build_reference, import_transformers

LENGTHS = [24, 3, 7, 7, 15, 24]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("activation", "theirs"), [("gelu_tanh", "gelu_pytorch_tanh"), ("gelu", "gelu")])
def test_the_loss_is_transformers_by_token(transformers, tiny, make_batch, lively, attention, activation, theirs):
    architecture = replace(tiny, activation=activation)
    batch = make_batch(architecture, LENGTHS, padded=True)
    model = ReferenceBert(architecture, attention)
    model.load_weights(lively(architecture))
    assert model.model.config.hidden_act == theirs
    assert model.model.config._attn_implementation == attention

    labels = torch.full_like(batch.tokens, -100)
    labels[batch.masked] = batch.labels
    mask = torch.arange(24) < batch.lengths[:, None]
    stock = model.model(
        input_ids=batch.tokens.view(-1, 24),
        token_type_ids=batch.segments.view(-1, 24),
        attention_mask=mask,
        labels=labels.view(-1, 24),
    )
    torch.testing.assert_close(model(batch), stock.loss * len(batch.labels), rtol=1e-6, atol=0)
    hits = stock.logits.argmax(-1).flatten()[batch.masked] == batch.labels
    assert model.count_correct(batch) == hits.sum()


def test_an_unpadded_batch_is_refused(transformers, tiny, make_batch):
    with pytest.raises(UsageError, match="padded batches only"):
        build_reference(tiny, 0)(make_batch(tiny, LENGTHS, padded=False))


def test_without_transformers_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"timedrun\[language\]"):
        import_transformers()


def test_importing_transformers_leaves_no_hidden_torchvision_behind(transformers):
    import_transformers()
    assert "torchvision" not in sys.modules or sys.modules["torchvision"] is not None
