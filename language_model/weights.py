"""BERT weights under transformers' names: initialization, checks, conversion, safetensors files."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind
from language_model.dependencies import require
from language_model.settings import BertArchitecture
from timedrun.methods.training.sampling import stream_seed

Weights = dict[str, Tensor]
Shape = tuple[int, ...]

WORD = "bert.embeddings.word_embeddings.weight"
ALIASES = {"cls.predictions.decoder.weight": WORD, "cls.predictions.decoder.bias": "cls.predictions.bias"}
"""Tied names; a file may have either or both."""
IGNORED = ("bert.pooler.", "cls.seq_relationship.", "bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
"""Other tensors of a BertForPreTraining file, unused for masked-token prediction."""

OUTSIDE = {
    "embeddings.word": "bert.embeddings.word_embeddings",
    "embeddings.position": "bert.embeddings.position_embeddings",
    "embeddings.segment": "bert.embeddings.token_type_embeddings",
    "embeddings.norm": "bert.embeddings.LayerNorm",
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head": "cls.predictions",
}
IN_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention.norm": "attention.output.LayerNorm",
    "feed_forward.intermediate": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward.norm": "output.LayerNorm",
}
PROJECTIONS = ("query", "key", "value")


def shapes(architecture: BertArchitecture) -> dict[str, Shape]:
    """Return name and shape of every tensor of transformers' BertForMaskedLM, in its order, tied ones once."""
    hidden, inner = architecture.hidden, architecture.intermediate
    shape_of: dict[str, Shape] = {
        WORD: (architecture.vocabulary, hidden),
        "bert.embeddings.position_embeddings.weight": (architecture.positions, hidden),
        "bert.embeddings.token_type_embeddings.weight": (architecture.segments, hidden),
        "bert.embeddings.LayerNorm.weight": (hidden,),
        "bert.embeddings.LayerNorm.bias": (hidden,),
    }
    outputs = {"intermediate.dense": (inner, hidden), "output.dense": (hidden, inner)}
    for layer in range(architecture.layers):
        for name in IN_LAYER.values():
            weight = (hidden,) if name.endswith("LayerNorm") else outputs.get(name, (hidden, hidden))
            shape_of[f"bert.encoder.layer.{layer}.{name}.weight"] = weight
            shape_of[f"bert.encoder.layer.{layer}.{name}.bias"] = weight[:1]
    shape_of["cls.predictions.bias"] = (architecture.vocabulary,)
    shape_of["cls.predictions.transform.dense.weight"] = (hidden, hidden)
    for name in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias"):
        shape_of[f"cls.predictions.transform.{name}"] = (hidden,)
    return shape_of


def initial_weights(architecture: BertArchitecture, seed: int) -> Weights:
    """Draw initial weights from `seed`: normal with the architecture's range, biases 0, norms 1, [PAD]'s row 0.

    This is transformers' initialization (BERT's own truncates the normal). torch's global generator is not used.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "model"))
    weights = {}
    for name, shape in shapes(architecture).items():
        if "LayerNorm" in name or name.endswith("bias"):
            weights[name] = torch.full(shape, 1.0 if name.endswith("LayerNorm.weight") else 0.0)
        else:
            weights[name] = torch.empty(shape).normal_(0, architecture.initializer_range, generator=generator)
    weights[WORD][0] = 0
    return weights


def check(tensors: Mapping[str, Tensor], architecture: BertArchitecture) -> Weights:
    """Return the tensors of a BertForMaskedLM, tied ones once. Raises DataError, which names each, if tensors are
    missing, unexpected, of a wrong shape, or tied but different."""
    wanted = shapes(architecture)
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
    module, _, leaf = name.rpartition(".")
    if module.startswith("layers."):
        _, layer, inner = module.split(".", 2)
        return f"bert.encoder.layer.{layer}.{IN_LAYER[inner]}.{leaf}"
    return f"{OUTSIDE[module]}.{leaf}"


def to_own(
    weights: Mapping[str, Tensor], names: Mapping[str, Shape], architecture: BertArchitecture
) -> dict[str, Tensor]:
    """Convert checked `weights` to the state of `encoder.Bert` with these parameter names and shapes.

    A name "...attention.qkv..." joins query, key and value; rows that pad the vocabulary are zero.
    """
    state = {}
    for name, shape in names.items():
        if ".qkv." in name:
            parts = [weights[theirs(name.replace(".qkv.", f".{part}."))] for part in PROJECTIONS]
            state[name] = torch.cat(parts)
            continue
        tensor = weights[theirs(name)]
        if name == "embeddings.word.weight" and shape[0] > architecture.vocabulary:
            padding = tensor.new_zeros(shape[0] - architecture.vocabulary, architecture.hidden)
            tensor = torch.cat((tensor, padding))
        state[name] = tensor
    return state


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
