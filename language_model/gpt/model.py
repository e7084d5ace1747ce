"""Causal language models: transformers' GPT-2, and a decoder of our own with what came after it, each part a switch."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from language_model.model import import_transformers
from timedrun.run.train_state import seed_everything


@dataclass(frozen=True, kw_only=True)
class GptConfig:
    """A causal language model. What is marked "modern" concerns our own decoder only; GPT-2's choices are fixed."""

    implementation: Literal["gpt2", "modern"]
    """gpt2: transformers' GPT2LMHeadModel."""
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    context: int = 1024
    """Tokens in a sequence."""
    vocabulary: int = 50_257
    dropout: float = 0.1
    """Of embeddings, attention weights and residual branches alike."""
    attention: Literal["eager", "sdpa"] = "sdpa"
    """gpt2: transformers' implementation; modern always uses torch's scaled_dot_product_attention."""
    positions: Literal["rotary", "learned"] = "rotary"
    """modern: rotary embedding (Su et al. 2021, arXiv 2104.09864) or a learned vector a position."""
    normalisation: Literal["rms", "layer"] = "rms"
    """modern: RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) or LayerNorm, before each branch and the head."""
    activation: Literal["relu_squared", "gelu"] = "relu_squared"
    """modern: of the MLP (So et al. 2021, arXiv 2109.08668)."""
    query_key_norm: bool = True
    """modern: RMSNorm without gain of each head's queries and keys (Henry et al. 2020, arXiv 2010.04245)."""
    zero_projections: bool = True
    """modern: each branch's output projection starts at zero, so every block starts as the identity."""
    tied_head: bool = False
    """modern: the head uses the token embedding's matrix."""
    logit_softcap: float = 0.0
    """modern: logits become cap * tanh(logits / cap), as in Gemma 2; 0: as they are."""
    vocabulary_multiple: int = 1
    """modern: the head's outputs are rounded up to a multiple; the extra ones never are the target."""

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.context, self.vocabulary, self.vocabulary_multiple)
        if min(sizes) < 1:
            raise ValueError(f"every size of a GPT must be at least 1: {self}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden size {self.hidden} is not divisible by {self.heads} attention heads")
        if self.positions == "rotary" and self.implementation == "modern" and self.hidden // self.heads % 2:
            raise ValueError(f"rotary positions need heads of even size, not {self.hidden // self.heads}")
        if not 0 <= self.dropout < 1 or self.logit_softcap < 0:
            raise ValueError(f"dropout {self.dropout} must be in [0, 1) and softcap {self.logit_softcap} 0 or more")


GPT2_125M = GptConfig(implementation="gpt2")
"""124,439,808 parameters, the head's being the token embedding's."""


class Gpt2(nn.Module):
    """transformers' GPT2LMHeadModel behind the interface of `Decoder`."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        transformers = import_transformers()
        modeling = importlib.import_module("transformers.models.gpt2.modeling_gpt2")
        settings = transformers.GPT2Config(
            vocab_size=config.vocabulary,
            n_positions=config.context,
            n_embd=config.hidden,
            n_layer=config.layers,
            n_head=config.heads,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=config.attention,
        )
        self.gpt2 = modeling.GPT2LMHeadModel(settings)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 tokens -> (B, L, vocabulary) logits of the token after each."""
        logits: Tensor = self.gpt2(tokens).logits
        return logits


def rotary_angles(length: int, size: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine (length, size / 2) of position * base^(-2 i / size), for pair i of a head of `size`."""
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair (i, i + size / 2) of the heads (B, H, L, size) by its position's angle."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1).to(x.dtype)


class CausalAttention(nn.Module):
    """Multi-head self-attention in which a token sees itself and those before it."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads, self.dropout, self.query_key_norm = config.heads, config.dropout, config.query_key_norm
        # Three matrices, not one: Muon makes each of them orthogonal.
        self.query = nn.Linear(config.hidden, config.hidden, bias=False)
        self.key = nn.Linear(config.hidden, config.hidden, bias=False)
        self.value = nn.Linear(config.hidden, config.hidden, bias=False)
        self.projection = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """(B, L, hidden) -> (B, L, hidden)."""
        shape = (*x.shape[:2], self.heads, -1)
        query, key, value = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        if self.query_key_norm:
            query, key = F.rms_norm(query, query.shape[-1:]), F.rms_norm(key, key.shape[-1:])
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        mixed = F.scaled_dot_product_attention(
            query, key, value.to(query.dtype), dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        result: Tensor = self.projection(mixed.transpose(1, 2).reshape(x.shape))
        return result


class FeedForward(nn.Module):
    """Two layers, the inner one four times as wide."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.expansion = nn.Linear(config.hidden, 4 * config.hidden, bias=False)
        self.projection = nn.Linear(4 * config.hidden, config.hidden, bias=False)
        self.squared = config.activation == "relu_squared"

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, hidden) -> (B, L, hidden)."""
        inner = self.expansion(x)
        result: Tensor = self.projection(F.relu(inner).square() if self.squared else F.gelu(inner))
        return result


class DecoderBlock(nn.Module):
    """Attention, then the MLP, each on a normalised input and added to the residual stream."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = normalisation(config), CausalAttention(config)
        self.feed_forward_norm, self.feed_forward = normalisation(config), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """(B, L, hidden) -> (B, L, hidden)."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotary))
        result: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return result


def normalisation(config: GptConfig) -> nn.Module:
    """The normalisation layer that `config` names, over the hidden size, without bias."""
    if config.normalisation == "rms":
        return nn.RMSNorm(config.hidden, eps=1e-6)
    return nn.LayerNorm(config.hidden, bias=False)


class Decoder(nn.Module):
    """A pre-norm causal transformer without biases."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        outputs = math.ceil(config.vocabulary / config.vocabulary_multiple) * config.vocabulary_multiple
        self.context, self.softcap = config.context, config.logit_softcap
        self.embedding = nn.Embedding(outputs if config.tied_head else config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden) if config.positions == "learned" else None
        if self.positions is None:
            cosine, sine = rotary_angles(config.context, config.hidden // config.heads)
            self.register_buffer("cosine", cosine, persistent=False)
            self.register_buffer("sine", sine, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.norm = normalisation(config)
        self.head = nn.Linear(config.hidden, outputs, bias=False)
        self._initialise(config)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    @torch.no_grad()
    def _initialise(self, config: GptConfig) -> None:
        """N(0, 0.02^2) as in GPT-2, in the blocks N(0, 0.02^2 * 768 / hidden), which is the same at GPT-2's width; the
        projections into the residual stream zero, or divided by sqrt(2 * layers) as in GPT-2.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            deviation = 0.02 if "blocks." not in name else 0.02 * math.sqrt(768 / config.hidden)
            if name.endswith("projection.weight"):
                deviation = 0.0 if config.zero_projections else deviation / math.sqrt(2 * config.layers)
            nn.init.normal_(parameter, std=deviation)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 tokens -> (B, L, outputs) logits of the token after each; L at most `context`."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"sequences of {length} tokens are longer than the model's context of {self.context}")
        x = self.embedding(tokens)
        rotary = None
        if self.positions is None:
            rotary = (self.cosine[:length], self.sine[:length])
        else:
            x = x + self.positions.weight[:length]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, rotary)
        logits: Tensor = self.head(self.norm(x))
        if self.softcap:
            logits = self.softcap * torch.tanh(logits.float() / self.softcap)
        return logits

    def hidden_matrices(self) -> list[Tensor]:
        """The weights of the blocks' linear layers: what Muon is meant for."""
        return [layer.weight for layer in self.blocks.modules() if isinstance(layer, nn.Linear)]


def build_model(config: GptConfig, seed: int) -> Gpt2 | Decoder:
    """The network with weights drawn from `seed` alone, whatever was drawn before."""
    seed_everything(seed)
    return Gpt2(config) if config.implementation == "gpt2" else Decoder(config)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum over all tokens of the cross-entropy in nats of `logits` (B, L, K) for `targets` (B, L), in float32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
