"""BERT weights under transformers' names: initialization, checks, conversion, safetensors files."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind
from language_model.dependencies import require
from timedrun.methods.training.sampling import stream_seed

Weights = dict[str, Tensor]
Shape = tuple[int, ...]

WORD = "bert.embeddings.word_embeddings.weight"
ALIASES = {"cls.predictions.decoder.weight": WORD, "cls.predictions.decoder.bias": "cls.predictions.bias"}
"""Tied names; a file may have either or both."""
IGNORED = ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
"""Other tensors of a BertForPreTraining file, unused for masked-token prediction."""

PREFIXES = {"embeddings": "bert.embeddings", "layer": "bert.encoder.layer", "head": "cls.predictions"}
"""Of transformers' names, by that of the part of `encoder.Bert`."""
PROJECTIONS = ("query", "key", "value")


def initial_weights(wanted: Mapping[str, Shape], deviation: float, seed: int) -> Weights:
    """Draw initial weights of the `wanted` shapes, in order, from `seed`: normal, biases 0, norms 1, [PAD]'s row 0.

    This is transformers' initialization (BERT's own truncates the normal). torch's global generator is not used.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "model"))
    weights = {}
    for name, shape in wanted.items():
        if "LayerNorm" in name or name.endswith("bias"):
            weights[name] = torch.full(shape, 1.0 if name.endswith("LayerNorm.weight") else 0.0)
        else:
            weights[name] = torch.empty(shape).normal_(0, deviation, generator=generator)
    weights[WORD][0] = 0
    return weights


def check(tensors: Mapping[str, Tensor], wanted: Mapping[str, Shape]) -> Weights:
    """Return the tensors of a BertForMaskedLM, of the `wanted` shapes, tied ones once. Raises DataError, which names
    each, if tensors are missing, unexpected, of a wrong shape, or tied but different."""
    weights: Weights = {}
    unexpected, wrong = [], []
    for name, tensor in tensors.items():
        target = ALIASES.get(name, name)
        if name.startswith(IGNORED):
            continue
        if target not in wanted:
            unexpected.append(name)
        elif tuple(tensor.shape) != wanted[target]:
            wrong.append(f"{name} has shape {list(tensor.shape)}, not {list(wanted[target])}")
        elif target in weights and not torch.equal(weights[target], tensor):
            wrong.append(f"{name} differs from {target}, to which it is tied")
        else:
            weights.setdefault(target, tensor)
    named_wrong = {ALIASES.get(text.split()[0], text.split()[0]) for text in wrong}
    missing = [name for name in wanted if name not in weights and name not in named_wrong]
    problems = [
        *([f"missing: {', '.join(missing)}"] if missing else []),
        *([f"unexpected: {', '.join(unexpected)}"] if unexpected else []),
        *wrong,
    ]
    if problems:
        raise DataError(
            "the checkpoint does not fit the model; no weight was changed. "
            + "; ".join(problems)
            + ". Use a checkpoint of this architecture (BertForMaskedLM or BertForPreTraining names)."
        )
    return {name: weights[name] for name in wanted}


def theirs(name: str) -> str:
    """Return transformers' name of a parameter (without fused_qkv): "head.bias" -> "cls.predictions.bias"."""
    part, _, rest = name.partition(".")
    return f"{PREFIXES[part]}.{rest}"


def to_own(weights: Mapping[str, Tensor], own: Mapping[str, Shape]) -> Weights:
    """Convert checked `weights` to the state of `encoder.Bert` with the names and shapes `own`.

    A name "...qkv..." joins query, key and value; rows that pad the vocabulary are zero.
    """
    state = {}
    for name, (rows, *width) in own.items():
        parts = [name.replace(".qkv.", f".{part}.") for part in PROJECTIONS] if ".qkv." in name else [name]
        tensor = torch.cat([weights[theirs(part)] for part in parts])
        state[name] = torch.cat((tensor, tensor.new_zeros(rows - len(tensor), *width)))
    return state


def to_theirs(state: Mapping[str, Tensor], wanted: Mapping[str, Shape]) -> Weights:
    """Convert the state of `encoder.Bert` to the tensors of transformers' names and `wanted` shapes, as `to_own` does
    the other way round."""
    weights: Weights = {}
    for name, tensor in state.items():
        names = [name.replace(".qkv.", f".{part}.") for part in PROJECTIONS] if ".qkv." in name else [name]
        weights |= dict(zip(map(theirs, names), tensor.chunk(len(names)), strict=True))
    return {name: weights[name][: shape[0]] for name, shape in wanted.items()}


def import_safetensors() -> ModuleType:
    """Import safetensors.torch. Raises UsageError if it is not installed."""
    return require("safetensors.torch", "safetensors files cannot be read")


def load_safetensors(path: Path) -> Weights:
    """Load all tensors of a safetensors file on the CPU. Raises DataError if it is missing or damaged."""
    module = import_safetensors()
    try:
        tensors: Weights = module.load_file(path)
    except Exception as error:  # the library's own error type derives from Exception alone
        require_own_kind(path)
        raise DataError(f"{path} cannot be read as a safetensors file ({error}); nothing was loaded.") from error
    return tensors
