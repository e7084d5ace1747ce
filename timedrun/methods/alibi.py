"""ALiBi: attention biased by distance in place of position embeddings, so that training sequences can be short."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from timedrun.methods.method import BatchHooks, Hooks, Method, NotNegative, Position, Rule

MODELS = {
    "transformers.models.gpt2.modeling_gpt2": "GPT2Model",
    "transformers.models.bert.modeling_bert": "BertModel",
    "transformers.models.roberta.modeling_roberta": "RobertaModel",
}
ONE_NTH = Rule(lambda part: 0 < part <= 1 and not 1 / Fraction(str(part)) % 1, "1 / n for a whole number n")


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8 h / heads) for h = 1 .. heads where that is a power of 2.

    Otherwise the slopes of the next smaller power P, then every second one of 2P's, from the first (Press, Smith and
    Lewis 2022, arXiv 2108.12409, and its authors' code).

    Examples:
        >>> alibi_slopes(4)
        [0.25, 0.0625, 0.015625, 0.00390625]
        >>> len(alibi_slopes(12))
        12
    """
    if heads < 1:
        raise ValueError(f"attention has at least 1 head, not {heads}")
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes + [2.0 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)][: heads - power]


def distance_bias(slopes: Tensor, queries: int, keys: int, *, causal: bool) -> Tensor:
    """Return the bias of the scaled logits, (heads, queries, keys): -slope * |i - j|, and -inf for j > i if `causal`.

    The queries are the last of the positions 0 .. keys - 1. Causal and under softmax this equals the published
    + slope * j; the distance stays exact in half precision where it counts, which is near the token itself.

    Examples:
        >>> distance_bias(torch.tensor([0.5]), queries=2, keys=3, causal=True)
        tensor([[[-0.5000, -0.0000,    -inf],
                 [-1.0000, -0.5000, -0.0000]]])
    """
    i = torch.arange(keys - queries, keys, device=slopes.device)[:, None]
    j = torch.arange(keys, device=slopes.device)[None, :]
    bias = -slopes[:, None, None] * (i - j).abs()
    return torch.where(j > i, -torch.inf, bias) if causal else bias


def shortened(tokens: Tensor, scaling: float) -> Tensor:
    """Cut sequences (B, L) into consecutive shorter ones (B / scaling, L * scaling); 1 / scaling must divide L.

    Examples:
        >>> shortened(torch.zeros(2, 64), scaling=0.25).shape
        torch.Size([8, 16])
    """
    pieces = 1 / Fraction(str(scaling))
    if tokens.dim() != 2:
        raise ValueError(f"alibi shortens token sequences [batch, length], not {list(tokens.shape)}")
    if pieces.denominator != 1 or tokens.shape[1] % pieces.numerator:
        raise ValueError(
            f"alibi.train_sequence_length_scaling {scaling} does not cut sequences of {tokens.shape[1]} tokens into "
            "equal whole ones; use 1 / n with an n that divides the length"
        )
    return tokens.reshape(tokens.shape[0] * pieces.numerator, tokens.shape[1] // pieces.numerator)


class _Bias(nn.Module):
    """Pre-hook that passes the biased mask to a model of transformers as a caller-made one."""

    slopes: Tensor

    def __init__(self, heads: int, longest: int, causal: bool) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)
        self.longest = longest
        """Longest sequence, in tokens."""
        self.causal = causal

    def forward(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the mask (1 or B, heads, queries, keys) added."""
        kind = type(model).__name__
        inputs = [*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
        inputs = [value for value in inputs if value is not None]
        if len(args) > 1 or len(inputs) != 1:
            raise ValueError(f"a {kind} with alibi takes its tokens or inputs_embeds, and everything else by keyword")
        queries, past = inputs[0].shape[1], kwargs.get("past_key_values")
        keys = queries + (past.get_seq_length() if past is not None else 0)
        if keys > self.longest:
            raise ValueError(f"{keys} tokens are more than alibi's max_sequence_length, {self.longest}")
        bias = distance_bias(self.slopes, queries, keys, causal=self.causal)[None]
        bias = bias.to(model.get_input_embeddings().weight.dtype)
        given = kwargs.get("attention_mask")
        if given is not None:
            if given.dim() != 2:
                raise ValueError(f"a {kind} with alibi takes a mask [batch, tokens], not {list(given.shape)}")
            bias = torch.where(given[:, None, None, :].bool(), bias, torch.finfo(bias.dtype).min)
        return args, {**kwargs, "attention_mask": bias}


def alibi(model: nn.Module, max_sequence_length: int = 0) -> int:
    """Give every GPT-2, BERT and RoBERTa of transformers in `model` ALiBi; return the number of changed layers.

    The position embedding becomes zeros that are not trained. The longest sequence has `max_sequence_length` tokens; 0:
    as many as before.

    Raises ValueError for an attention implementation that takes no bias, such as flash attention.

    Examples:
        >>> alibi(nn.Linear(4, 2))  # a model without attention
        0
    """
    kinds = tuple(
        getattr(sys.modules[module], kind) for module, kind in MODELS.items() if module in sys.modules
    )  # where it was never imported, no model can hold one
    layers = 0
    for part in list(model.modules()):
        if not isinstance(part, kinds) or any(isinstance(child, _Bias) for child in part.children()):
            continue
        config = part.config
        if config._attn_implementation not in ("eager", "sdpa"):
            raise ValueError(
                "alibi needs eager or sdpa attention, which take a bias; "
                f"this {type(part).__name__} has {config._attn_implementation}"
            )
        if any(parameter.is_meta for parameter in part.parameters()):
            raise ValueError(
                f"alibi sets values, which this {type(part).__name__} on the meta device does not have yet; nothing was"
                " changed; give it storage (to_empty) and values first"
            )
        owner, name = (part, "wpe") if hasattr(part, "wpe") else (part.embeddings, "position_embeddings")
        old = getattr(owner, name)
        unused = 0 if old.padding_idx is None else old.padding_idx + 1  # RoBERTa counts positions from there
        longest = max_sequence_length or old.num_embeddings - unused
        rows = longest + unused
        new = nn.Embedding(rows, old.embedding_dim, old.padding_idx, device=old.weight.device, dtype=old.weight.dtype)
        nn.init.zeros_(new.weight)
        new.weight.requires_grad_(False)
        setattr(owner, name, new)
        if owner is not part:
            owner.position_ids = torch.arange(rows, device=old.weight.device)[None]
            owner.token_type_ids = torch.zeros_like(owner.position_ids)
        config.max_position_embeddings = rows
        part.alibi = _Bias(config.num_attention_heads, longest, owner is part or config.is_decoder).to(
            old.weight.device
        )
        part.register_forward_pre_hook(part.alibi, with_kwargs=True)
        layers += config.num_hidden_layers
    return layers


class _ALiBiHooks(BatchHooks):
    _method: ALiBi
    done = "{hooks.batches} batches cut to {method.train_sequence_length_scaling:g} of their length"

    def batch(self, inputs: Tensor, targets: Tensor, at: Position, classes: int) -> tuple[Tensor, Tensor]:
        scaling = self._method.train_sequence_length_scaling
        inputs, targets = shortened(inputs, scaling), shortened(targets, scaling)
        self.batches += 1
        return inputs, targets


class ALiBi(Method, name="alibi"):
    """Apply linear attention biases to transformers' GPT-2, BERT and RoBERTa. By default the method reshapes training
    batches (B, L) to (4 B, L / 4).

    Source: Press, Smith and Lewis 2022 (arXiv 2108.12409), in the form of MosaicML Composer. The bias of encoders,
    -slope * |i - j|, is Composer's; the paper has none. The authors find that such a model, trained on short sequences,
    is as good on long ones. Evaluation therefore keeps their length.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed = stack(ALiBi(train_sequence_length_scaling=0.5))
        >>> speed.enter(step=0, progress=0.0)
        >>> tokens, labels = speed.batch(torch.zeros(2, 64), torch.zeros(2, 64), classes=0)
        >>> tokens.shape
        torch.Size([4, 32])
    """

    acting: ClassVar[tuple[type, ...]] = (_Bias,)
    max_sequence_length: NotNegative = 0
    """Longest sequence the model will take; 0: what it took before."""
    train_sequence_length_scaling: Annotated[float, ONE_NTH] = 0.25

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        layers = alibi(model, self.max_sequence_length)
        if not layers:
            raise self.no_effect("found no GPT-2, BERT or RoBERTa of transformers without it, so biased no attention")
        return model, f"{layers} attention layers biased by distance, position embedding zero and fixed"

    def hooks(self) -> Hooks:
        return _ALiBiHooks(self) if self.train_sequence_length_scaling < 1 else Hooks(self)
