"""GPT-2's size; each switch of the decoder alone: against transformers' GPT-2, a plain formula, and the future."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from language_model.gpt import fineweb_configs
from language_model.gpt.attention_mask import allowed_pairs, attend, attention_mask
from language_model.gpt.model import Decoder, Gpt2, build_model, token_losses
from language_model.gpt.settings import GPT2_125M, GptConfig
from tests.language_model.gpt.plain_decoder import in_decoders_names, plain_logits

SIZE: dict[str, Any] = {"layers": 4, "hidden": 24, "heads": 3, "context": 12, "vocabulary": 40}
BASELINE = replace(fineweb_configs.fineweb_baseline().model, **SIZE)
SWITCHES: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary"},
    "query_key_norm": {"query_key_norm": True},
    "relu_squared": {"activation": "relu_squared"},
    "rms_norm": {"normalisation": "rms"},
    "no_biases": {"biases": False},
    "untied_head": {"tied_head": False},
    "zero_projections": {"zero_projections": True},
    "logit_softcap": {"logit_softcap": 2.0},
    "vocabulary_multiple": {"vocabulary_multiple": 16},
    "value_embeddings": {"value_embeddings": 2},
    "bigram_rows": {"bigram_rows": 17},
    "heads": {"heads": 1},
    "document_attention": {"document_attention": True},
    "attention_window": {"attention_window": 3},
}
SWITCHES["all"] = {name: value for switch in SWITCHES.values() for name, value in switch.items()}
ALONE = pytest.mark.parametrize("switch", SWITCHES)


def made(model: GptConfig = BASELINE, **settings: Any) -> Decoder:
    decoder = build_model(replace(model, **settings), 1)
    assert isinstance(decoder, Decoder)
    with torch.no_grad():  # far from the start, where a switch might not act yet
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return decoder


def fresh(**settings: Any) -> Gpt2 | Decoder:
    return build_model(GptConfig(**SIZE, dropout=0.0, **settings), 1).eval()


def drawn(rows: int = 2, seed: int = 0) -> Tensor:
    tokens = torch.randint(39, (rows, 13), generator=torch.Generator().manual_seed(seed))
    tokens[0, 5] = tokens[0, 9] = 39  # documents begin
    return tokens


def losses(model: Decoder, tokens: Tensor) -> Tensor:
    """Cross-entropy of each token, (B, L)."""
    logits = model(tokens[:, :-1]).float()
    return torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")


def test_with_gpt2s_switches_loss_and_gradients_are_those_of_transformers():
    theirs = build_model(GptConfig(implementation="gpt2", dropout=0.0, **SIZE), 2)
    assert isinstance(theirs, Gpt2)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)  # biases and gains, too
    ours, tokens = made(), drawn()
    weights = in_decoders_names(dict(theirs.gpt2.transformer.named_parameters()))
    assert weights.keys() == dict(ours.named_parameters()).keys()
    ours.load_state_dict(weights, strict=False)  # the head is the embedding
    losses(ours, tokens).mean().backward()
    expected = token_losses(theirs(tokens[:, :-1]), tokens[:, 1:]) / tokens[:, 1:].numel()
    expected.backward()
    torch.testing.assert_close(losses(ours, tokens).mean(), expected)
    gradients = in_decoders_names({name: p.grad for name, p in theirs.gpt2.transformer.named_parameters()})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-6, rtol=1e-5, msg=name)


@ALONE
def test_a_switch_computes_its_formula(switch):
    model, tokens = made(**SWITCHES[switch]), drawn()[:, :12]
    config = replace(BASELINE, **SWITCHES[switch])
    expected = [plain_logits(model.state_dict(), row, config) for row in tokens]
    torch.testing.assert_close(model(tokens).double(), torch.stack(expected), atol=1e-4, rtol=1e-4)


@ALONE
def test_no_switch_lets_a_token_see_a_later_one(switch):
    model, tokens = made(**SWITCHES[switch]), drawn()
    before = losses(model, tokens)
    for place, value in ((8, 39), (9, 3), (12, 39), (12, 5)):  # documents begin, end, or only a token changes
        changed = tokens.clone()
        changed[:, place] = value
        after = losses(model, changed)
        assert torch.equal(before[:, : place - 1], after[:, : place - 1])  # of targets before the change
        assert not torch.equal(before[:, place - 1], after[:, place - 1])


def test_a_table_of_bigrams_begins_without_an_effect_and_value_embeddings_with_half_of_each():
    plain, fresh = (build_model(replace(BASELINE, bigram_rows=rows), 0) for rows in (0, 17))
    assert isinstance(fresh, Decoder) and fresh.bigrams is not None and not fresh.bigrams.weight.any()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            fresh.get_parameter(name).copy_(parameter)
    assert torch.equal(plain(drawn()[:, :12]), fresh(drawn()[:, :12]))
    mixture = build_model(replace(BASELINE, value_embeddings=2), 0).get_parameter("value_mixture")
    assert mixture.tolist() == [0.5] * 8


def test_gpt2_125m_has_124439808_parameters():
    with torch.device("meta"):
        model = Gpt2(GPT2_125M)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808
    assert len(model.gpt2.transformer.h) == 12


@pytest.mark.parametrize("implementation", ["gpt2", "modern"])
def test_weights_depend_on_the_seed_alone(implementation):
    first = fresh(implementation=implementation).state_dict()
    torch.rand(5)
    second = fresh(implementation=implementation).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = build_model(GptConfig(**SIZE, implementation=implementation, dropout=0.0), 2).state_dict()
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_zero_projections_make_every_block_the_identity_at_the_start():
    model, tokens = fresh(implementation="modern"), torch.randint(40, (2, 12))
    assert isinstance(model, Decoder)
    torch.testing.assert_close(model(tokens), model.head(model.norm(model.embedding(tokens))))
    assert len(model.hidden_matrices()) == 6 * 4


def test_sequences_longer_than_the_context_are_refused():
    with pytest.raises(ValueError, match="13 tokens exceed the model's context of 12"):
        fresh(implementation="modern")(torch.zeros(1, 13, dtype=torch.int64))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"layers": 0}, "must be at least 1"),
        ({"heads": 5}, "not divisible by 5"),
        ({"heads": 8}, "heads of even size, not 3"),
        ({"kv_heads": 2}, "cannot share 2"),
        ({"kv_heads": -1}, "cannot share -1"),
        ({"mlp_width": -1}, "-1"),
        ({"rms_epsilon": 0.0}, "0.0"),
        ({"dropout": 1.0}, "dropout 1.0 must"),
        ({"logit_softcap": -1.0}, "softcap -1.0"),
        ({"value_embeddings": 3}, "must be 0 to half"),
        ({"bigram_rows": 1}, "bigram_rows 1 must be"),
        ({"attention_window": 13}, "attention_window 13 0 to the context"),
        ({"document_attention": True, "dropout": 0.1}, "take no dropout"),
    ],
)
def test_settings_that_no_model_can_have_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        GptConfig(**{**SIZE, "implementation": "modern", "dropout": 0.0, **values})


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("documents", [False, True])
def test_torchs_block_mask_which_a_gpu_takes_allows_the_pairs_of_the_dense_one(window, documents):
    """The dense mask is compared with a plain formula above; on a CPU a block mask has no backward pass."""
    tokens = torch.tensor([[5, 9, 1, 2, 9, 9, 3], [9, 4, 4, 4, 4, 4, 9]])  # in which 9 begins a document
    given = None if window is None else torch.tensor(window)
    mask = attention_mask(tokens, window=given, end_of_text=9 if documents else None)
    pairs = allowed_pairs(given, (tokens == 9).cumsum(1) if documents else None)
    block = create_block_mask(pairs, 2, None, 7, 7, device="cpu")
    inputs = torch.randn(3, 2, 3, 7, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(flex_attention(*inputs, block_mask=block), attend(*inputs, mask, dropout=0.0))
