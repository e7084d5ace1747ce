"""The baseline has the loss and predictions of transformers' BERT; the encoder these and its gradients with every
speed-up."""

from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
import torch
from torch import Tensor

from language_model.collator import MaskedBatch
from language_model.configs import ALL_SPEED_UPS
from language_model.encoder import Bert, build_bert
from language_model.model import ReferenceBert, build_reference
from language_model.settings import BERT_LARGE, BertArchitecture, SpeedUps
from language_model.weights import ALIASES
from tests.language_model.transformers_names import from_own, weights_of

LENGTHS = [24, 3, 7, 7, 15, 24, 4]
ALL_ON = replace(ALL_SPEED_UPS, row_multiple=8)
ALONE = {
    "none": SpeedUps(),
    **{name: SpeedUps(**{name: True}) for name in ("fused_qkv", "masked_head", "last_layer_subset")},
    **{name: SpeedUps(**{name: True}) for name in ("fused_dropout_add_norm", "fused_dense_gelu_dense")},
    "low_precision_residual": SpeedUps(low_precision_residual=True),
    "pad_vocabulary": SpeedUps(pad_vocabulary=64),
    **{name: SpeedUps(attention=name) for name in ("sdpa_padded", "sdpa_grouped", "sdpa_loop")},
    "all": ALL_ON,
    "all, eager": replace(ALL_ON, attention="eager"),
    "all, sdpa_padded": replace(ALL_ON, attention="sdpa_padded"),
}


def trained(model: Bert | ReferenceBert, batch: MaskedBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss of a batch and every gradient under transformers' names."""
    loss = model(batch) / batch.global_masked
    loss.backward()
    if isinstance(model, Bert):
        return loss.detach(), from_own({name: p.grad for name, p in model.named_parameters()}, model.architecture)
    return loss.detach(), {name: p.grad for name, p in model.model.named_parameters() if name not in ALIASES}


@pytest.fixture(scope="module")
def truth(transformers: ModuleType):
    """Return transformers' loss, gradients and number of correct predictions for each activation."""

    @cache
    def computed(architecture: BertArchitecture, make_batch, lively) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        model = ReferenceBert(architecture, "eager")
        model.load_weights(lively(architecture))
        batch = make_batch(architecture, LENGTHS, padded=True)
        return *trained(model, batch), model.logits(batch)[batch.masked].argmax(-1)

    return computed


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("activation", "theirs"), [("gelu_tanh", "gelu_pytorch_tanh"), ("gelu", "gelu")])
def test_the_baselines_loss_is_transformers(transformers, tiny, make_batch, lively, attention, activation, theirs):
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


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
@pytest.mark.parametrize("name", ALONE)
def test_loss_gradients_and_predictions_are_transformers(truth, tiny, make_batch, lively, name, activation):
    architecture = replace(tiny, activation=activation)
    loss, gradients, best = truth(architecture, make_batch, lively)
    model = Bert(architecture, ALONE[name])
    model.load_weights(lively(architecture))
    for batch in (
        make_batch(architecture, LENGTHS, padded=True),
        make_batch(architecture, LENGTHS, padded=False),
        make_batch(architecture, LENGTHS, padded=False, filler=5),
    ):
        model.zero_grad()
        own_loss, own_gradients = trained(model, batch)
        torch.testing.assert_close(own_loss, loss, rtol=1e-5, atol=0)
        assert own_gradients.keys() == gradients.keys()
        for key, gradient in gradients.items():
            torch.testing.assert_close(
                own_gradients[key], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}"
            )
        filler = batch.labels[len(best) :]
        assert model.count_correct(replace(batch, labels=torch.cat((best, filler)))) == len(best)
        wrong = best.clone()
        wrong[::3] = (wrong[::3] + 1) % architecture.vocabulary
        assert model.count_correct(replace(batch, labels=torch.cat((wrong, filler)))) == len(best) - len(best[::3])


@pytest.mark.parametrize("low_precision", [False, True])
def test_bf16_autocast_stays_within_two_percent_of_fp32(truth, tiny, make_batch, lively, low_precision):
    loss, gradients, _ = truth(tiny, make_batch, lively)
    model = Bert(tiny, replace(ALL_ON, low_precision_residual=low_precision))
    model.load_weights(lively(tiny))
    batch = make_batch(tiny, LENGTHS, padded=False)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.hidden(batch)
        own_loss = model(batch) / batch.global_masked
    assert hidden.dtype == (torch.bfloat16 if low_precision else torch.float32)
    own_loss.backward()
    assert own_loss.dtype == torch.float32
    torch.testing.assert_close(own_loss.detach(), loss, rtol=0.02, atol=0)
    own = from_own({name: p.grad for name, p in model.named_parameters()}, tiny)
    for key, gradient in gradients.items():
        if "self.key.bias" not in key:  # its gradient is zero in exact arithmetic
            assert (own[key] - gradient).norm() <= 0.1 * gradient.norm(), key


def test_initial_weights_are_the_baselines_for_all_speed_ups(transformers, tiny):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    reference = weights_of(build_reference(tiny, 3))
    for speed_ups in (SpeedUps(), ALL_ON):
        own = weights_of(build_bert(tiny, 3, speed_ups))
        assert own.keys() == reference.keys()
        assert all(torch.equal(own[name], tensor) for name, tensor in reference.items())
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_acts_in_training_only(tiny, make_batch, lively):
    model = Bert(replace(tiny, dropout=0.3), ALL_ON)
    model.load_weights(lively(tiny))
    batch = make_batch(tiny, LENGTHS, padded=False)
    assert model(batch) != model(batch)
    model.eval()
    plain = Bert(tiny)
    plain.load_weights(lively(tiny))
    torch.testing.assert_close(model(batch), plain(batch), rtol=1e-5, atol=0)


def test_bert_large_has_the_published_number_of_parameters():
    with torch.device("meta"):
        for speed_ups in (SpeedUps(), SpeedUps(fused_qkv=True)):
            assert sum(p.numel() for p in Bert(BERT_LARGE, speed_ups).parameters()) == 335_174_458
        padded = Bert(BERT_LARGE, SpeedUps(pad_vocabulary=8))
    assert sum(p.numel() for p in padded.parameters()) == 335_174_458 + 6 * 1024


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_compiled_model_on_a_gpu_computes_the_same(tiny, make_batch, lively):
    device = torch.device("cuda")
    compiled = Bert(tiny, ALL_ON).to(device)
    plain = Bert(tiny).to(device)
    for model in (compiled, plain):
        model.load_weights(lively(tiny))
    compiled.compile()
    for lengths in (LENGTHS, [24, 24, 20, 5, 6, 7, 8]):
        batch = make_batch(tiny, lengths, padded=False).to(device)
        with torch.autocast("cuda", torch.bfloat16):
            loss, expected = compiled(batch), plain(batch)
        torch.testing.assert_close(loss, expected, rtol=0.02, atol=0)
        loss.backward()
