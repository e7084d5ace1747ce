"""ALiBi: slopes of the paper, bias and attention against computations of their own, and what is left unchanged."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from tests.timedrun.methods.small_transformers import small_transformer
from timedrun.methods import NoEffect
from timedrun.methods.alibi import ALiBi, alibi, alibi_slopes, distance_bias, shortened
from timedrun.methods.method import Position
from timedrun.methods.stack import stack

HEADS, LENGTH, HIDDEN = 6, 16, 24
SHAPE = {"vocab_size": 30, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS}
SHAPE |= {"bos_token_id": None, "eos_token_id": None, "initializer_range": 0.3}  # so that attention is far from uniform
KINDS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"max_position_embeddings": LENGTH, "use_cache": False},
    "BertForMaskedLM": {"max_position_embeddings": LENGTH, "intermediate_size": 32, "pad_token_id": 0},
    "RobertaForMaskedLM": {"max_position_embeddings": LENGTH + 2, "intermediate_size": 32, "pad_token_id": 1},
}


def make_model(kind: str = "GPT2LMHeadModel", attention: str = "eager", **settings: Any) -> Any:
    return small_transformer(kind, attn_implementation=attention, **SHAPE, **KINDS[kind], **settings).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(30, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def test_slopes_are_the_papers_and_the_bias_is_minus_slope_times_distance():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(16) == pytest.approx([2 ** (-h / 2) for h in range(1, 17)])
    assert alibi_slopes(12) == pytest.approx([2**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    for heads in range(2, 200):
        slopes = alibi_slopes(heads)
        assert len(set(slopes)) == heads and min(slopes) == pytest.approx(2**-8) and max(slopes) < 1
    slopes = alibi_slopes(3)
    bias = distance_bias(torch.tensor(slopes), 3, 5, causal=True)
    symmetric = distance_bias(torch.tensor(slopes), 3, 5, causal=False)
    for h, slope in enumerate(slopes):
        for row, i in enumerate(range(2, 5)):  # the last three of five positions ask
            for j in range(5):
                expected = -math.inf if j > i else -slope * (i - j)
                assert bias[h, row, j].item() == pytest.approx(expected)
                assert symmetric[h, row, j].item() == pytest.approx(-slope * abs(i - j))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_the_altered_model_equals_an_independent_computation(tokens, kind, attention, padded):
    model = make_model(kind, attention)
    assert alibi(model) == 2
    gpt = kind == "GPT2LMHeadModel"
    layer = model.transformer.h[1].attn if gpt else model.base_model.encoder.layer[1].attention.self
    seen: dict[str, np.ndarray[Any, Any]] = {}

    def keep(module: nn.Module, arguments: tuple[Any, ...], output: tuple[torch.Tensor, Any]) -> None:
        seen.update(x=arguments[0].double().numpy(), y=output[0].double().numpy())

    layer.register_forward_hook(keep)
    lengths = [LENGTH, LENGTH - 5, LENGTH - 9] if padded else [LENGTH] * 3
    mask = {"attention_mask": (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()} if padded else {}
    with torch.no_grad():
        model(input_ids=tokens, **mask)
    weights = {name: value.double().numpy() for name, value in layer.state_dict().items()}
    distances = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    for b, length in enumerate(lengths):
        if gpt:
            q, k, v = np.split(seen["x"][b] @ weights["c_attn.weight"] + weights["c_attn.bias"], 3, axis=1)
        else:
            parts = ("query", "key", "value")
            q, k, v = (seen["x"][b] @ weights[f"{part}.weight"].T + weights[f"{part}.bias"] for part in parts)
        heads = []
        for part, slope in zip(np.split(np.arange(HIDDEN), HEADS), alibi_slopes(HEADS), strict=True):
            scores = q[:length, part] @ k[:length, part].T / math.sqrt(len(part)) - slope * distances[:length, :length]
            if gpt:
                scores[np.triu_indices(length, 1)] = -math.inf
            heads.append(softmax(scores, axis=1) @ v[:length, part])
        expected = np.concatenate(heads, axis=1)
        if gpt:
            expected = expected @ weights["c_proj.weight"] + weights["c_proj.bias"]
        np.testing.assert_allclose(seen["y"][b, :length], expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_takes_longer_sequences_keeps_its_names_and_trains(kind):
    model = make_model(kind).train()
    names = list(model.state_dict())
    _, words = ALiBi(max_sequence_length=24).model(model)
    assert words == "2 attention layers biased by distance, position embedding zero and fixed"
    assert list(model.state_dict()) == names
    tokens = torch.full((2, 24), 5)  # no padding token
    model(input_ids=tokens, labels=tokens).loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == [name for name in names if name.endswith(("position_embeddings.weight", "wpe.weight"))]
    with pytest.raises(ValueError, match="25 tokens are more than alibi's max_sequence_length, 24"):
        model(input_ids=torch.full((2, 25), 5))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_and_cached_keys_leave_the_logits(tokens, attention):
    model = make_model(attention=attention)
    alibi(model)
    with torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :10], use_cache=True)
        torch.testing.assert_close(first.logits, whole[:, :10])
        rest = model(tokens[:, 10:], past_key_values=first.past_key_values, use_cache=True).logits
        torch.testing.assert_close(rest, whole[:, 10:])
        mask = torch.ones_like(tokens)
        mask[:, :4] = 0
        padded = model(tokens, attention_mask=mask).logits
        torch.testing.assert_close(padded[:, 4:], model(tokens[:, 4:]).logits)
        assert padded.isfinite().all()


def test_other_masks_attentions_and_models_are_refused(tokens):
    model = make_model()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="this GPT2Model has flash_attention_2"):
        ALiBi().model(model)
    model = make_model()
    ALiBi().model(model)
    with pytest.raises(ValueError, match=r"takes a mask \[batch, tokens\]"):
        model(tokens, attention_mask=torch.ones(3, 1, LENGTH, LENGTH))
    with torch.device("meta"), pytest.raises(ValueError, match=r"BertModel on the meta device .*\(to_empty\)"):
        alibi(make_model("BertForMaskedLM"))
    for other in (nn.MultiheadAttention(8, 2), model):  # the second has it already
        with pytest.raises(NoEffect, match="alibi found no GPT-2, BERT or RoBERTa"):
            ALiBi().model(other)


def test_a_quarter_of_the_length_makes_four_sequences_of_one_in_order_and_a_scaling_of_one_leaves_them():
    tokens = torch.arange(16).view(2, 8)
    expected = torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]])
    assert torch.equal(shortened(tokens, 0.25), expected)
    hooks = ALiBi().hooks()
    assert hooks.effect() is None
    inputs, targets = hooks.batch(tokens, tokens + 1, Position(0, 0.5), 30)
    assert torch.equal(targets, inputs + 1)
    assert hooks.effect() == "1 batches cut to 0.25 of their length"
    speed = stack(ALiBi(train_sequence_length_scaling=1.0))  # surgery still counts
    speed.model(make_model())
    speed.enter(0, 0.0)
    assert speed.batch(tokens, tokens, 30)[0] is tokens
    speed.verify()
