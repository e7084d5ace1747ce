"""Settings of a BERT run: model size, data source and masking, speed-ups."""

from dataclasses import dataclass, field
from typing import Literal

import tyro

from timedrun.runner.config import LATER, Split


@dataclass(frozen=True, kw_only=True)
class BertArchitecture:
    """Size and arithmetic of a post-layer-norm BERT encoder with a masked-token head tied to the word embeddings."""

    layers: int = 24
    hidden: int = 1024
    heads: int = 16
    intermediate: int = 4096
    positions: int = 512
    """Longest sequence."""
    vocabulary: int = 30_522
    segments: int = 2
    dropout: float = 0.0
    """Of hidden states and attention weights."""
    activation: Literal["gelu_tanh", "gelu"] = "gelu_tanh"
    """MLPerf's reference uses the tanh approximation; transformers defaults to the exact form."""
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        numbers = (self.layers, self.hidden, self.heads, self.intermediate, self.positions, self.vocabulary)
        if min(numbers) < 1 or self.segments < 2:
            raise ValueError(f"every size of a BERT must be at least 1, with at least 2 segments: {self}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden size {self.hidden} is not divisible by {self.heads} attention heads")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout {self.dropout} is not in [0, 1)")


BERT_LARGE = BertArchitecture()
"""BERT-Large uncased: 335,174,458 parameters without pooler and next-sentence head."""


@dataclass(frozen=True, kw_only=True)
class TextDataConfig:
    """Source of the sequences and their masking."""

    source: Literal["text_store", "topics", "topics_mixed"]
    """text_store: a folder written by `prepare`. topics: Python's own documentation topics, prepared on first use.
    topics_mixed: the same in sequences half as long on the average, as MLPerf BERT's are."""
    longest: int
    """Maximum sequence length; the length of every padded sequence."""
    masked_fraction: float = 0.2
    """Fraction of masked training tokens; the evaluation set keeps the masks stored by `prepare`."""
    max_predictions: int = 102
    """Maximum number of predicted tokens in a training sequence; 102 is 20 % of 512."""
    evaluation_samples: int = 10_000
    """Maximum number of evaluation sequences kept by `prepare`, evenly picked; 10,000 is MLPerf's number."""
    eval_batch: int = 448
    """Sequences in one evaluation forward pass over all ranks."""
    split: Split = field(default="own", metadata=LATER)
    """topics, topics_mixed: tuning: evaluate on a part of the training sections and leave the evaluation's out."""


@dataclass(frozen=True, kw_only=True)
class SpeedUps:
    """Speed-ups that leave BERT's results unchanged. With all off, the arithmetic is the baseline's."""

    unpadding: bool = False
    """Batches hold true tokens only (done by the collator; the model accepts both layouts)."""
    attention: str = "eager"
    """A backend of `attention.BACKENDS`, or "auto"."""
    fused_qkv: bool = False
    """One matrix for queries, keys and values."""
    masked_head: bool = False
    """Compute scores at masked positions only."""
    last_layer_subset: bool = False
    """Compute the last layer after its attention, and the head, at masked positions only."""
    fused_dropout_add_norm: bool = False
    """Use `fused.dropout_add_layer_norm` after attention and feed-forward."""
    fused_dense_gelu_dense: bool = False
    """Use `fused.dense_gelu_dense` for the feed-forward: less memory."""
    compiled_regions: tyro.conf.Fixed[Literal[False]] = False
    """Ended; it stays for the digests of runs in results/, all of which have it off."""
    low_precision_residual: bool = False
    """Under autocast, keep hidden states in 16 bits between layers and through layer norms. No effect in fp32."""
    fused_optimizer: bool = False
    """Use one kernel for the optimizer's step."""
    balance_lengths: bool = False
    """Divide a global batch so that all ranks have about the same number of tokens."""
    pad_vocabulary: int = 1
    """Pad the rows of the vocabulary's matrices to a multiple of this; results do not change."""
    row_multiple: int = 1
    """Pad the rows of an unpadded batch to a multiple of this (by the collator); in 16 bits on a CPU, at least 128."""

    def __post_init__(self) -> None:
        if min(self.pad_vocabulary, self.row_multiple) < 1:
            raise ValueError(f"multiples must be at least 1: {self.pad_vocabulary=}, {self.row_multiple=}")
