"""Masked language models of transformers without work that no loss depends on: padding, and positions without a label.

Both methods are hooks. Parameters, their names and what `save_pretrained` writes stay as they were.
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from timedrun.methods.method import Method
from timedrun.methods.ragged_attention import AUTO, BACKENDS, Attend, RaggedRows, choose, matmul_dtype, row_multiple

LAST_LAYER = {
    "BertForMaskedLM": ("encoder", "attention.output"),
    "RobertaForMaskedLM": ("encoder", "attention.output"),
    "DistilBertForMaskedLM": ("transformer", "sa_layer_norm"),
}
"""Of each model of transformers the stack of layers, and the first part of a layer that mixes no more tokens."""
ATTENTION = "timedrun_unpadding"
"""Name in transformers' AttentionInterface."""
IGNORED = -100
"""Label of a position that has none, in transformers and as torch's cross-entropy has it."""
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _masked_language_models(method: Method, model: nn.Module, hook: type) -> list[Any]:
    """Return the masked language models inside `model` that have no `hook` yet. Raises NoEffect if there is none."""
    parts: list[Any] = list(model.modules())
    models = [
        part
        for part in parts
        if type(part).__name__ in LAST_LAYER
        and type(part).__module__.startswith("transformers.models.")
        and not any(isinstance(other, hook) for other in part.base_model._forward_hooks.values())
    ]
    if not models:
        raise method.no_effect(f"found no {', '.join(LAST_LAYER)} of transformers without it in {type(model).__name__}")
    if any(getattr(part.config, "is_decoder", False) for part in models):
        raise ValueError(
            f"{method.name} needs an encoder, in which tokens see those after them; config.is_decoder is set"
        )
    return models


def _require_plain(method: str, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ValueError for a call of `model` whose result would have other shapes, or whose arguments have no name."""
    kind, config = type(model).__name__, model.config
    if len(args) > 1 or kwargs.get("inputs_embeds") is not None:
        raise ValueError(f"a {kind} with {method} takes its tokens first or as input_ids, everything else by keyword")
    for name in ("output_hidden_states", "output_attentions"):
        if kwargs.get(name, getattr(config, name, False)):
            raise ValueError(f"a {kind} with {method} computes other rows than {name} would return; turn it off")


@dataclass
class _RealTokens:
    """The tokens of a batch that are not padding, and the attention within its sequences, chosen by the first layer."""

    rows: RaggedRows
    attend: Attend | None = None


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, *, real_tokens: _RealTokens, **given: Any
) -> tuple[Tensor, None]:
    """Compute attention within each sequence: (1, heads, T, width) -> (1, T, heads, width)."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    dropout = given.get("dropout", 0.0)
    if real_tokens.attend is None:
        real_tokens.attend = BACKENDS[choose(AUTO, q.device, q.dtype, dropout)](real_tokens.rows)
    return real_tokens.attend(q, k, v, dropout)[None], None


class _Unpadded:
    """Hooks of one masked language model: `check` before it, `pack` before its base model, the call after that."""

    acted = False
    """True after a batch that had padding."""

    def check(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _require_plain("unpadding", model, args, kwargs)
        mask, labels = kwargs.get("attention_mask"), kwargs.get("labels")
        if mask is not None and mask.dim() != 2:
            raise ValueError(f"unpadding needs an attention_mask [batch, tokens], not {list(mask.shape)}")
        if mask is not None and labels is not None:
            labelled = kwargs.get("labelled", (labels != IGNORED).flatten())  # by MaskedHead, whose hook may come first
            if not mask.flatten()[labelled].all():
                raise ValueError(f"unpadding would change the loss, which has labels at padding; set them to {IGNORED}")

    def pack(self, base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        tokens, mask = (*args, kwargs.get("input_ids"))[0], kwargs.get("attention_mask")
        keep = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
        taken = places = keep.flatten().nonzero().squeeze(1)
        lengths = keep.sum(1)
        if filler := -len(places) % row_multiple(tokens.device, matmul_dtype(next(base.parameters()))):
            taken, lengths = functional.pad(places, (0, filler)), functional.pad(lengths, (0, 1), value=filler)
        if (positions := kwargs.get("position_ids")) is None:  # RoBERTa counts from its padding's number on
            count = getattr(base.embeddings, "create_position_ids_from_input_ids", None)
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            positions = count(tokens, base.embeddings.padding_idx) if count else positions
        fields = {**kwargs, "input_ids": tokens, "position_ids": positions}
        for name in ("input_ids", "position_ids", "token_type_ids"):
            if (field := fields.get(name)) is not None:
                fields[name] = field.expand(keep.shape).flatten()[taken][None]
        if "labelled" in kwargs:
            fields["labelled"] = (keep.flatten().cumsum(0) - 1)[kwargs["labelled"]]
        self.acted = self.acted or places.numel() < keep.numel()
        rows = RaggedRows.unpadded(fields["input_ids"][0], lengths, longest=tokens.shape[1])
        real = {"real_tokens": _RealTokens(rows), "places": places, "shape": keep.shape}
        return (), {**fields, "attention_mask": None, **real}

    def __call__(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if "labelled" not in kwargs:  # else the head gets those rows alone
            hidden, places, shape = output.last_hidden_state[0], kwargs["places"], kwargs["shape"]
            padded = hidden.new_zeros(shape.numel(), hidden.shape[-1]).index_copy(0, places, hidden[: len(places)])
            output.last_hidden_state = padded.view(*shape, -1)


class Unpadding(Method, name="unpadding"):
    """Compute the layers of transformers' BERT, RoBERTa and DistilBERT on the tokens that the attention mask keeps, end
    to end in one row, as NVIDIA's and MosaicML's BERT of MLPerf do (without a paper).

    Losses and gradients are the model's own to rounding, in training and in evaluation. The logits at padding are those
    of a hidden state of zeros.

    Examples:
        >>> Unpadding().model(nn.Linear(4, 2))
        Traceback (most recent call last):
            ...
        timedrun.methods.method.NoEffect: unpadding found no BertForMaskedLM, RobertaForMaskedLM, ...
    """

    acting: ClassVar[tuple[type, ...]] = (_Unpadded,)
    clashes: ClassVar[dict[str, str]] = {"alibi": "both set the mask of attention"}

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        models = _masked_language_models(self, model, _Unpadded)
        sys.modules["transformers"].AttentionInterface.register(ATTENTION, _attend)
        for part in models:
            hooks = _Unpadded()
            part.set_attn_implementation(ATTENTION)
            part.register_forward_pre_hook(hooks.check, with_kwargs=True)
            part.base_model.register_forward_pre_hook(hooks.pack, with_kwargs=True)
            part.base_model.register_forward_hook(hooks, with_kwargs=True)
        layers = sum(part.config.num_hidden_layers for part in models)
        return model, f"{layers} layers on tokens without padding"


class _Labelled:
    """Hooks of a masked language model: `cut` before it, `note` and `select` in its last layer, the call after that."""

    acted = False
    """True after a batch with a position without a label."""

    def __init__(self, last_layer: bool) -> None:
        self._last_layer = last_layer
        self._rows: Tensor | None = None

    def cut(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        labels = kwargs.get("labels")
        if labels is None or not model.training:
            return None
        _require_plain("masked_head", model, args, kwargs)
        rows = (labels.flatten() != IGNORED).nonzero().squeeze(1)
        self.acted = self.acted or rows.numel() < labels.numel()
        return args, {**kwargs, "labels": labels.flatten()[rows][None], "labelled": rows}

    def note(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._rows = kwargs.get("labelled")

    def select(self, part: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        rows = self._rows
        return args if rows is None else tuple(x.flatten(0, 1).index_select(0, rows)[None] for x in args)

    def __call__(self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if "labelled" in kwargs and not self._last_layer:
            hidden = output.last_hidden_state.flatten(0, 1)
            output.last_hidden_state = hidden.index_select(0, kwargs["labelled"])[None]


class MaskedHead(Method, name="masked_head"):
    """Compute the head of transformers' masked language models, and the last layer after its attention, at the
    positions that have a label, in training alone (MosaicML's BERT of MLPerf v2.1, without a paper).

    Losses and gradients are the model's own to rounding. In training the logits of a batch (B, L) with M labels are
    (1, M, vocabulary), in the order of `labels[labels != -100]`. In evaluation they are those of all positions.

    Examples:
        >>> MaskedHead().model(nn.Linear(4, 2))
        Traceback (most recent call last):
            ...
        timedrun.methods.method.NoEffect: masked_head found no BertForMaskedLM, RobertaForMaskedLM, ...
    """

    acting: ClassVar[tuple[type, ...]] = (_Labelled,)
    last_layer_subset: bool = True
    """Leave the other positions out of the last layer, too, from its attention's output on."""

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        for part in _masked_language_models(self, model, _Labelled):
            hooks, (layers, after) = _Labelled(self.last_layer_subset), LAST_LAYER[type(part).__name__]
            part.register_forward_pre_hook(hooks.cut, with_kwargs=True)
            part.base_model.register_forward_hook(hooks, with_kwargs=True)
            if self.last_layer_subset:
                last = getattr(part.base_model, layers).layer[-1]
                last.attention.register_forward_pre_hook(hooks.note, with_kwargs=True)
                last.get_submodule(after).register_forward_pre_hook(hooks.select)
        return model, "head" + " and last layer" * self.last_layer_subset + " at labels alone"
