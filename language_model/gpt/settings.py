"""Settings of a GPT run: the model, and the sampling of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sampling = Literal["windows", "blocks"]


@dataclass(frozen=True, kw_only=True)
class GptDataConfig:
    """Sampling of sequences from a token store."""

    sampling: Sampling = "windows"
    """windows: each sequence starts at a random token, as in nanoGPT. blocks: the split is cut into consecutive
    sequences, each seen once an epoch in an order drawn for that epoch, as in MosaicML's GPT runs."""
    eval_batch: int = 64
    """Sequences in one evaluation forward pass over all ranks."""
    eval_sequences: int = 0
    """Sequences of an evaluation, at even distances over the validation split; they overlap if the split is shorter
    than all of them. 0: the consecutive sequences of the whole split."""


@dataclass(frozen=True, kw_only=True)
class GptConfig:
    """Size and parts of a causal language model. Fields marked "modern" concern timedrun's own decoder only."""

    implementation: Literal["gpt2", "modern"]
    """gpt2: transformers' GPT2LMHeadModel."""
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    context: int = 1024
    """Tokens in a sequence."""
    vocabulary: int = 50_257
    dropout: float = 0.1
    """Of embeddings, attention weights and residual branches."""
    attention: Literal["eager", "sdpa"] = "sdpa"
    """gpt2: transformers' implementation. modern always uses scaled_dot_product_attention."""
    positions: Literal["rotary", "learned"] = "rotary"
    """modern: rotary embedding (Su et al. 2021, arXiv 2104.09864) or a learned embedding."""
    normalisation: Literal["rms", "layer"] = "rms"
    """modern: RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) or LayerNorm, before each branch and the head."""
    activation: Literal["relu_squared", "gelu", "swiglu"] = "relu_squared"
    """modern: activation of the MLP (So et al. 2021, arXiv 2109.08668). swiglu: SiLU of a third matrix's output, times
    the expansion (Shazeer 2020, arXiv 2002.05202)."""
    query_key_norm: bool = True
    """modern: RMSNorm without gain of each head's queries and keys (Henry et al. 2020, arXiv 2010.04245)."""
    zero_projections: bool = True
    """modern: initialize each branch's output projection to zero, so that every block starts as the identity."""
    tied_head: bool = False
    """modern: the head uses the token embedding's matrix."""
    logit_softcap: float = 0.0
    """modern: logits become cap * tanh(logits / cap), as in Gemma 2; 0: unchanged."""
    vocabulary_multiple: int = 1
    """modern: round the head's outputs up to a multiple; the extra ones are never a target."""
    mlp_width: int = 0
    """modern: inner width of the MLP; 0: four times the hidden size."""
    kv_heads: int = 0
    """modern: heads of keys and values, each shared by as many heads of queries (Ainslie et al. 2023, arXiv
    2305.13245); 0: one for each head of queries."""
    rms_epsilon: float = 1e-6
    """modern: RMSNorm's epsilon."""
    rotary_base: float = 10_000.0
    """modern: base of the rates of rotary positions."""
    rotary_scaling: Literal["none", "llama3"] = "none"
    """modern: llama3 slows the low rates of rotary positions as Llama 3.1 does for contexts above 8,192 tokens."""

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden, self.heads, self.context, self.vocabulary, self.vocabulary_multiple)
        if min(sizes) < 1:
            raise ValueError(f"every size of a GPT must be at least 1: {self}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden size {self.hidden} is not divisible by {self.heads} attention heads")
        if self.kv_heads < 0 or (self.kv_heads and self.heads % self.kv_heads):
            raise ValueError(f"{self.heads} attention heads cannot share {self.kv_heads} heads of keys and values")
        if self.mlp_width < 0 or self.rms_epsilon <= 0 or self.rotary_base <= 1:
            raise ValueError(
                f"mlp_width {self.mlp_width} must be 0 or more, rms_epsilon {self.rms_epsilon} above 0 and rotary_base"
                f" {self.rotary_base} above 1"
            )
        if self.positions == "rotary" and self.implementation == "modern" and self.hidden // self.heads % 2:
            raise ValueError(f"rotary positions need heads of even size, not {self.hidden // self.heads}")
        if not 0 <= self.dropout < 1 or self.logit_softcap < 0:
            raise ValueError(f"dropout {self.dropout} must be in [0, 1) and softcap {self.logit_softcap} 0 or more")


GPT2_125M = GptConfig(implementation="gpt2")
"""GPT-2 small: 124,439,808 parameters with the head tied to the token embedding."""
