"""Causal language models: transformers' GPT-2, and a modern decoder in which each part is a switch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from language_model.gpt.attention_mask import attend, attention_mask
from language_model.gpt.settings import GptConfig
from language_model.model import import_transformers
from timedrun.methods.training.train_state import seed_everything

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Gpt2(nn.Module):
    """transformers' GPT2LMHeadModel behind the interface of `Decoder`."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        transformers = import_transformers("gpt2")
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
        self.gpt2 = transformers.GPT2LMHeadModel(settings)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 tokens -> (B, L, vocabulary) logits of the next token."""
        logits: Tensor = self.gpt2(tokens).logits
        return logits


def rotary_angles(
    length: int, size: int, base: float = 10_000.0, *, scaling: Literal["none", "llama3"] = "none"
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, (length, size / 2) each, of position * base^(-2 i / size) for pair i of a head.

    llama3: a rate of fewer than 1 turn in 8,192 tokens is divided by 8, one of more than 4 turns is kept, and between
    them the share that is kept rises linearly with the turns (the settings of Llama 3.1, arXiv 2407.21783).
    """
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if scaling == "llama3":
        turns = 8192 * rates / (2 * math.pi)
        kept = ((turns - 1) / (4 - 1)).clamp(0, 1)
        rates = rates * (kept + (1 - kept) / 8)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (i, i + size / 2) of the heads (B, H, L, size) by the angle of its position."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1).to(x.dtype)


def pair_rows(tokens: Tensor, rows: int) -> Tensor:
    """Return the row of each token and the one before it, (B, L), in a table of `rows` (see `GptConfig.bigram_rows`).

    Source: modded-nanogpt, pull request 201.
    """
    pairs = (36313 * tokens[:, 1:]) ^ (27191 * tokens[:, :-1])
    return F.pad(pairs % (rows - 1), (1, 0), value=rows - 1)


class CausalAttention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads, self.dropout, self.query_key_norm = config.heads, config.dropout, config.query_key_norm
        # Separate matrices, because Muon orthogonalizes each of them.
        self.query = nn.Linear(config.hidden, config.hidden, bias=config.biases)
        self.key = nn.Linear(config.hidden, config.kv_width, bias=config.biases)
        self.value = nn.Linear(config.hidden, config.kv_width, bias=config.biases)
        self.projection = nn.Linear(config.hidden, config.hidden, bias=config.biases)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor] | None,
        mask: Tensor | BlockMask | None = None,
        mixture: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """(B, L, hidden) -> (B, L, hidden). `mixture`: a factor of the values and an addend of their shape."""
        shape = (*x.shape[:2], -1, x.shape[-1] // self.heads)
        query, key, value = self.query(x), self.key(x), self.value(x)
        if mixture is not None:
            value = mixture[0] * value + mixture[1]
        query, key, value = (part.view(shape).transpose(1, 2) for part in (query, key, value))
        if self.query_key_norm:
            query, key = F.rms_norm(query, query.shape[-1:]), F.rms_norm(key, key.shape[-1:])
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        mixed = attend(query, key, value.to(query.dtype), mask, dropout=self.dropout if self.training else 0.0)
        result: Tensor = self.projection(mixed.transpose(1, 2).reshape(x.shape))
        return result


class FeedForward(nn.Module):
    """MLP of two linear layers, or of three with SwiGLU."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.mlp_width or 4 * config.hidden
        self.expansion = nn.Linear(config.hidden, width, bias=config.biases)
        self.projection = nn.Linear(width, config.hidden, bias=config.biases)
        gated = config.activation == "swiglu"
        self.gate = nn.Linear(config.hidden, width, bias=config.biases) if gated else None
        self.squared = config.activation == "relu_squared"
        self.approximation = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, hidden) -> (B, L, hidden)."""
        inner = self.expansion(x)
        if self.gate is not None:
            gated: Tensor = self.projection(F.silu(self.gate(x)) * inner)
            return gated
        result: Tensor = self.projection(
            F.relu(inner).square() if self.squared else F.gelu(inner, approximate=self.approximation)
        )
        return result


class DecoderBlock(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = normalisation(config), CausalAttention(config)
        self.feed_forward_norm, self.feed_forward = normalisation(config), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, *conditions: Any) -> Tensor:
        """(B, L, hidden) -> (B, L, hidden); `conditions` are the further arguments of the attention."""
        x = x + self.dropout(self.attention(self.attention_norm(x), *conditions))
        result: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return result


def normalisation(config: GptConfig) -> nn.Module:
    """Return the configured normalisation over the hidden size."""
    if config.normalisation == "rms":
        return nn.RMSNorm(config.hidden, eps=config.rms_epsilon)
    return nn.LayerNorm(config.hidden, bias=config.biases)


class Decoder(nn.Module):
    """A pre-norm causal transformer, by default without biases."""

    cosine: Tensor
    sine: Tensor
    window: Tensor | None
    """Tokens to which a token attends, 0-dimensional; the run changes it during the window's warm-up."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        outputs = math.ceil(config.vocabulary / config.vocabulary_multiple) * config.vocabulary_multiple
        self.context, self.softcap = config.context, config.logit_softcap
        self.embedding = nn.Embedding(outputs if config.tied_head else config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden) if config.positions == "learned" else None
        if self.positions is None:
            cosine, sine = rotary_angles(
                config.context, config.hidden // config.heads, config.rotary_base, scaling=config.rotary_scaling
            )
            self.register_buffer("cosine", cosine, persistent=False)
            self.register_buffer("sine", sine, persistent=False)
        window = torch.tensor(config.attention_window) if config.attention_window else None
        self.register_buffer("window", window, persistent=False)
        self.end_of_text = config.vocabulary - 1 if config.document_attention else None
        tables = config.value_embeddings
        self.value_embeddings = nn.ModuleList(nn.Embedding(config.vocabulary, config.kv_width) for _ in range(tables))
        self.value_mixture = nn.Parameter(torch.full((4 * tables,), 0.5)) if tables else None
        self.bigrams = nn.Embedding(config.bigram_rows, config.hidden) if config.bigram_rows else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.norm = normalisation(config)
        self.head = nn.Linear(config.hidden, outputs, bias=False)
        self._initialise(config)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    @torch.no_grad()
    def _initialise(self, config: GptConfig) -> None:
        """Draw weights from N(0, 0.02^2) as in GPT-2; in the blocks from N(0, 0.02^2 * 768 / hidden), which is the same
        at GPT-2's width. Projections into the residual stream are zero, or divided by sqrt(2 * layers) as in GPT-2.
        """
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            if parameter.dim() < 2:
                continue
            deviation = 0.02 if "blocks." not in name else 0.02 * math.sqrt(768 / config.hidden)
            if name.endswith("projection.weight"):
                deviation = 0.0 if config.zero_projections else deviation / math.sqrt(2 * config.layers)
            nn.init.normal_(parameter, std=deviation if name != "bigrams.weight" else 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) int64 tokens -> (B, L, outputs) logits of the next token; L is at most `context`."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"sequences of {length} tokens exceed the model's context of {self.context}")
        x = self.embedding(tokens)
        rotary = None
        if self.positions is None:
            rotary = (self.cosine[:length], self.sine[:length])
        else:
            x = x + self.positions.weight[:length]
        if self.bigrams is not None:
            x = x + self.bigrams(pair_rows(tokens, self.bigrams.num_embeddings))
        x = self.dropout(x)
        mask = None
        if self.window is not None or self.end_of_text is not None:
            mask = attention_mask(tokens, window=self.window, end_of_text=self.end_of_text)
        mixtures = self._value_mixtures(tokens)
        for block, mixture in zip(self.blocks, mixtures, strict=True):
            x = block(x, rotary, mask, mixture)
        logits: Tensor = self.head(self.norm(x))
        if self.softcap:
            logits = self.softcap * torch.tanh(logits.float() / self.softcap)
        return logits

    def _value_mixtures(self, tokens: Tensor) -> list[tuple[Tensor, Tensor] | None]:
        """Return the factor of each block's values and what is added to them, (B, L, hidden); None: neither."""
        mixtures: list[tuple[Tensor, Tensor] | None] = [None] * len(self.blocks)
        if self.value_mixture is not None:
            embedded = [table(tokens) for table in self.value_embeddings]
            factors = self.value_mixture.view(-1, 2)
            for place, (kept, added) in enumerate(factors):
                table = place % len(embedded)
                block = table if place < len(embedded) else table - len(embedded)  # from the end
                mixtures[block] = kept, added * embedded[table]
        return mixtures

    def hidden_matrices(self) -> list[Tensor]:
        """Return the weights of the blocks' linear layers, the parameters that Muon trains."""
        return [layer.weight for layer in self.blocks.modules() if isinstance(layer, nn.Linear)]


def build_model(config: GptConfig, seed: int) -> Gpt2 | Decoder:
    """Build the network with initial weights that depend on `seed` alone. Sets the global seed."""
    seed_everything(seed)
    return Gpt2(config) if config.implementation == "gpt2" else Decoder(config)


class NextTokenLoss(nn.Module):
    """The summed loss of `model`. torch.compile computes it from the logits in one kernel, without a float32 copy of
    them in memory, if it compiles both together; no state dict has the name of this module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """(B, L) tokens and (B, L) following ones -> 0-dimensional loss in nats."""
        return token_losses(self.model(tokens), targets)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy in nats, summed over all tokens, of logits (B, L, K) for targets (B, L), in float32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
