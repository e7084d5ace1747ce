"""The decoder with Llama's settings against transformers' LlamaForCausalLM of the same weights."""

import importlib
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from language_model.gpt.model import Decoder, build_model, rotary_angles, token_losses
from language_model.gpt.settings import GptConfig
from language_model.model import import_transformers

SMALL = GptConfig(
    implementation="modern",
    layers=2,
    hidden=32,
    heads=4,
    context=48,
    vocabulary=50,
    dropout=0.0,
    activation="swiglu",
    mlp_width=56,
    query_key_norm=False,
    zero_projections=False,
    rms_epsilon=1e-5,
    rotary_base=500_000.0,
)
SETTINGS = [{}, {"kv_heads": 1}, {"kv_heads": 2, "rotary_scaling": "llama3"}, {"tied_head": True}]
NAMES = {
    "embedding": "model.embed_tokens",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.projection": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.expansion": "mlp.up_proj",
    "feed_forward.projection": "mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}


def transformers_name(name: str) -> str:
    """Return transformers' name of a decoder's weight."""
    part, number, rest = ("blocks.", *name.split(".", 2)[1:]) if name.startswith("blocks.") else ("", "", name)
    layer, _, kind = rest.rpartition(".")
    return f"{part and NAMES['blocks'] + '.'}{number and number + '.'}{NAMES[layer]}.{kind}"


def rope_of(config: GptConfig) -> dict[str, Any]:
    """Return transformers' settings of the rotary positions; llama3 as Llama 3.1's published config.json has it."""
    if config.rotary_scaling == "none":
        return {"rope_type": "default", "rope_theta": config.rotary_base}
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    original = {"original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "rope_theta": config.rotary_base, **factors, **original}


def llama(config: GptConfig, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return transformers' model with the decoder's weights."""
    import_transformers()
    modeling = importlib.import_module("transformers.models.llama.modeling_llama")
    settings = modeling.LlamaConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.mlp_width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads or config.heads,
        max_position_embeddings=config.context,
        rms_norm_eps=config.rms_epsilon,
        rope_parameters=rope_of(config),
        tie_word_embeddings=config.tied_head,
        use_cache=False,
        attn_implementation="eager",
    )
    model: nn.Module = modeling.LlamaForCausalLM(settings)
    model.load_state_dict({transformers_name(name): value for name, value in weights.items()})
    return model


@pytest.mark.parametrize("changes", SETTINGS)
def test_logits_loss_and_gradients_are_those_of_transformers_llama(changes):
    config = GptConfig(**{**vars(SMALL), **changes})
    own = build_model(config, 3)
    assert isinstance(own, Decoder)
    with torch.no_grad():  # gains of 1 would hide a missing one
        for name, parameter in own.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    theirs = llama(config, own.state_dict())
    tokens = torch.randint(50, (3, 49))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits, expected = own(inputs), theirs(inputs).logits
    torch.testing.assert_close(logits, expected)
    loss, expected_loss = token_losses(logits, targets), F.cross_entropy(expected.mT, targets, reduction="sum")
    torch.testing.assert_close(loss, expected_loss)
    torch.autograd.backward([loss, expected_loss])
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert {transformers_name(name) for name, _ in own.named_parameters()} == gradients.keys()
    for name, parameter in own.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[transformers_name(name)], atol=1e-4, rtol=1e-4, msg=name)


def test_llama3_keeps_fast_rates_and_divides_slow_ones_by_8():
    plain, scaled = (rotary_angles(2, 128, 500_000.0, scaling=kind) for kind in ("none", "llama3"))
    rates, slower = (torch.atan2(sine[1].double(), cosine[1].double()) for cosine, sine in (plain, scaled))
    turns = 8192 * rates / (2 * torch.pi)
    torch.testing.assert_close(slower[turns > 4], rates[turns > 4])
    torch.testing.assert_close(slower[turns < 1], rates[turns < 1] / 8, rtol=1e-5, atol=0)
    between = (turns > 1) & (turns < 4)
    assert between.any() and (slower < rates)[between].all() and (slower > rates / 8)[between].all()
