"""Settings of a GPT run: the model, and the sampling of its data."""

from dataclasses import dataclass, field
from typing import Literal

import tyro

from timedrun.runner.config import LATER, Split

Sampling = Literal["windows", "blocks", "documents"]


@dataclass(frozen=True, kw_only=True)
class GptDataConfig:
    """Sampling of sequences from a token store."""

    sampling: Sampling = "windows"
    """windows: each sequence starts at a random token, as in nanoGPT. blocks: the split is cut into consecutive
    sequences, each seen once an epoch in an order drawn for that epoch, as in MosaicML's GPT runs. documents: like
    blocks, but a sequence begins at the first start of a document within its block, if there is one (as sequences of
    the modded-nanogpt speed runs of 2025 begin at one)."""
    eval_batch: int = 64
    """Sequences in one evaluation forward pass over all ranks; a rank takes at most its micro-batch."""
    eval_sequences: int = 0
    """Sequences of an evaluation, at even distances over the validation split; they overlap if the split is shorter
    than all of them. 0: the consecutive sequences of the whole split."""
    eval_tokens: int = 0
    """Tokens that an evaluation predicts, the first ones of the validation split; 0: all of them."""
    format: Literal["store", "shards"] = "store"
    """Of what `timedrun prepare` writes: a store of characters, or `.bin` shards as FineWeb's. A run reads either."""
    split: Split = field(default="own", metadata=LATER)
    """tuning: the end of the training tokens, as many as the validation split has, at most a tenth, is evaluated on."""


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
    attention: tyro.conf.Fixed[Literal["sdpa"]] = "sdpa"
    positions: Literal["rotary", "learned"] = "rotary"
    """modern: rotary embedding (Su et al. 2021, arXiv 2104.09864) or a learned embedding."""
    normalisation: Literal["rms", "layer"] = "rms"
    """modern: RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) or LayerNorm, before each branch and the head."""
    activation: Literal["relu_squared", "gelu", "gelu_tanh", "swiglu"] = "relu_squared"
    """modern: activation of the MLP (So et al. 2021, arXiv 2109.08668). gelu_tanh: GELU as GPT-2 approximates it.
    swiglu: SiLU of a third matrix's output, times the expansion (Shazeer 2020, arXiv 2002.05202)."""
    query_key_norm: bool = True
    """modern: RMSNorm without gain of each head's queries and keys (Henry et al. 2020, arXiv 2010.04245)."""
    zero_projections: bool = True
    """modern: initialize each branch's output projection to zero, so that every block starts as the identity."""
    tied_head: bool = False
    """modern: the head uses the token embedding's matrix."""
    logit_softcap: float = 0.0
    """modern: logits become cap * tanh(logits / cap), as in Gemma 2 (arXiv 2408.00118); 0: unchanged."""
    vocabulary_multiple: int = 1
    """modern: round the head's outputs up to a multiple; the extra ones are never a target."""
    biases: bool = False
    """modern: linear layers and LayerNorm have biases, as in GPT-2."""
    value_embeddings: int = 0
    """modern: n more token embeddings; the i-th is mixed into the values of attention in block i and in the i-th of the
    last n blocks, with two learned factors in each, 0.5 at first (modded-nanogpt, records of December 2024, after Zhou
    et al. 2024, arXiv 2410.17897)."""
    bigram_rows: int = field(default=0, metadata=LATER)
    """modern: a table of n rows, zero at first, is added to the token embedding. Token t after token s has row (36313 t
    xor 27191 s) mod (n - 1), so that pairs share rows; a sequence's first token has the last one (modded-nanogpt, pull
    request 201). 0: none."""
    document_attention: bool = False
    """modern: a token attends only to its own document, which begins with <|endoftext|>, the vocabulary's last token
    (modded-nanogpt, record of 19 November 2024)."""
    attention_window: int = 0
    """modern: a token attends to the last n tokens, itself included (Beltagy et al. 2020, arXiv 2004.05150); 0: all."""
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
        if not 0 <= 2 * self.value_embeddings <= self.layers or not 0 <= self.attention_window <= self.context:
            raise ValueError(
                f"value_embeddings {self.value_embeddings} must be 0 to half of the {self.layers} layers, and"
                f" attention_window {self.attention_window} 0 to the context of {self.context}"
            )
        if self.bigram_rows < 0 or self.bigram_rows == 1:
            raise ValueError(f"bigram_rows {self.bigram_rows} must be 0, or 2 or more: the last is a sequence's first")
        if self.dropout and self.masked:
            raise ValueError("document_attention and attention_window take no dropout; set it to 0")

    @property
    def kv_width(self) -> int:
        """Width of the keys and values of all heads together."""
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def masked(self) -> bool:
        """True if attention has a mask beyond causality."""
        return self.document_attention or bool(self.attention_window)


GPT2_125M = GptConfig(implementation="gpt2")
"""GPT-2 small: 124,439,808 parameters with the head tied to the token embedding."""

GPT2_DECODER = GptConfig(
    implementation="modern",
    dropout=0.0,
    positions="learned",
    normalisation="layer",
    activation="gelu_tanh",
    query_key_norm=False,
    zero_projections=False,
    tied_head=True,
    biases=True,
)
"""The same network, to the last parameter, as a decoder of which each part is a switch."""
