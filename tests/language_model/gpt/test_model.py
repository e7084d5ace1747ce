"""GPT-2's size, and each part of the decoder against an independent computation."""

from typing import Any

import pytest
import torch

from language_model.gpt.model import Decoder, Gpt2, build_model
from language_model.gpt.settings import GPT2_125M, GptConfig

SMALL: dict[str, Any] = {"layers": 2, "hidden": 24, "heads": 3, "context": 12, "vocabulary": 40, "dropout": 0.0}


def made(**settings: Any) -> Gpt2 | Decoder:
    return build_model(GptConfig(**{**SMALL, **settings}), 1).eval()


def test_gpt2_125m_has_124439808_parameters():
    with torch.device("meta"):
        model = Gpt2(GPT2_125M)
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808
    assert len(model.gpt2.transformer.h) == 12


@pytest.mark.parametrize("implementation", ["gpt2", "modern"])
def test_weights_depend_on_the_seed_alone(implementation):
    first = made(implementation=implementation).state_dict()
    torch.rand(5)
    second = made(implementation=implementation).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = build_model(GptConfig(**{**SMALL, "implementation": implementation}), 2).state_dict()
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_gpt2_with_eager_attention_and_with_sdpa_is_one_model():
    tokens = torch.randint(40, (2, 12))
    eager, sdpa = made(implementation="gpt2", attention="eager"), made(implementation="gpt2", attention="sdpa")
    assert isinstance(eager, Gpt2) and isinstance(sdpa, Gpt2)
    assert [model.gpt2.config._attn_implementation for model in (eager, sdpa)] == ["eager", "sdpa"]
    torch.testing.assert_close(eager(tokens), sdpa(tokens))


def test_zero_projections_make_every_block_the_identity_at_the_start():
    model, tokens = made(implementation="modern"), torch.randint(40, (2, 12))
    assert isinstance(model, Decoder)
    torch.testing.assert_close(model(tokens), model.head(model.norm(model.embedding(tokens))))
    assert len(model.hidden_matrices()) == 12


def test_sequences_longer_than_the_context_are_refused():
    with pytest.raises(ValueError, match="13 tokens exceed the model's context of 12"):
        made(implementation="modern")(torch.zeros(1, 13, dtype=torch.int64))


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
        GptConfig(**{**SMALL, "implementation": "modern", **values})
