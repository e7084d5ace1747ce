"""Initial weights of BERT from a .safetensors file, of TensorFlow's names or of transformers', as the latter."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from judging.ground.errors import DataError
from language_model.weights import Shape, check, import_safetensors, load_safetensors

OPTIMIZER_STATE = ("adam_m", "adam_v", "LAMB", "LAMB_1", "global_step", "beta1_power", "beta2_power")
"""Last name components of TensorFlow's variables that are not weights."""
UNUSED = ("bert/pooler/", "cls/seq_relationship/")
"""Weights of the next-sentence task, unused by masked-token prediction, in TensorFlow's names."""
INDEX_MD5 = "tensorflow_index_md5"
"""Entry of a converted file's metadata: MD5 of the TensorFlow checkpoint's PREFIX.index."""

MLPERF_INDEX_MD5 = "f97de3ae180eb8d479555c939d50d048"
"""MD5 of model.ckpt-28252.index (tf1), from MLPerf's reference (training/language_model/tensorflow/bert/README).
The index holds a checksum of every tensor, and TensorFlow verifies those, so this index implies MLPerf's weights."""

SELF_CHECK_ACCURACY = 0.34085
"""Masked-token accuracy of MLPerf's untrained checkpoint on MLPerf's 10,000 evaluation sequences: the reference value
for loaders (tinygrad's external_test_checkpoint_loading.py, which cites MLPerf's README)."""
SELF_CHECK_TOLERANCE = 0.01
"""Half a percent is due to newly paired sequences and to bf16."""


def find(folder: Path) -> Path:
    """Return the only .safetensors file in `folder`. Raises DataError if there is none or more than one, with the
    conversion to make where a TensorFlow checkpoint is."""
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if not files and (tensorflow := sorted([*folder.glob("*.index"), *folder.glob("*.data-*-of-*")])):
        raise DataError(
            f"{folder}: holds a TensorFlow checkpoint ({tensorflow[0].name}), which is not read. Convert it once, where"
            f" TensorFlow is installed: python scripts/convert_bert_checkpoint.py {tensorflow[0].with_suffix('')}"
            f" {folder / 'model.safetensors'} (in timedrun's source; language_model/README.md, The initial checkpoint)."
        )
    names = ", ".join(file.name for file in files) or "none"
    raise DataError(
        f"{folder}: training starts from one initial checkpoint in this folder, a .safetensors file; it holds {names}."
        " Put one there: MLPerf's (TensorFlow's model.ckpt-28252, tf1), converted as language_model/README.md says"
        " under The initial checkpoint, or one in transformers' names."
    )


def load_initial_checkpoint(folder: Path, wanted: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Load the weights in `folder` (see `find`): names and shapes as `wanted`, float32, CPU, tied ones once.

    TensorFlow's names become transformers'. Its kernels are transposed: TensorFlow multiplies from the left, (in, out),
    torch keeps (out, in). Optimizer state and the next-sentence task's weights (`UNUSED`) are left out. Raises
    DataError if the checkpoint is absent, damaged or of another architecture, with all missing, unexpected and
    mismatched tensors; UsageError if safetensors is not installed.
    """
    file = find(folder)
    stored = load_safetensors(file)
    if tensorflow := any("/" in name for name in stored):
        names = {mlperf_name(name): name for name in wanted}
        tensors = {
            names.get(name, name): tensor.t() if name.endswith("/kernel") and tensor.ndim == 2 else tensor
            for name, tensor in stored.items()
            if not name.startswith(UNUSED) and name.rpartition("/")[2] not in OPTIMIZER_STATE
        }
    else:
        tensors = stored
    try:
        weights = check(tensors, wanted)
    except DataError as error:
        how = " Names here are transformers', and kernels are transposed." if tensorflow else ""
        raise DataError(f"{file}: {error}{how}") from error
    if other := [f"{name} is {tensor.dtype}" for name, tensor in weights.items() if tensor.dtype != torch.float32]:
        raise DataError(f"{file}: weights to start from must be float32: {', '.join(other)}.")
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def mlperf_name(name: str) -> str:
    """Return the name in MLPerf's TensorFlow reference for a tensor of transformers' BertForMaskedLM."""
    if name == "cls.predictions.bias":
        return "cls/predictions/output_bias"
    module, _, leaf = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).rpartition(".")
    module = module.replace(".", "/")
    if module.endswith("_embeddings"):
        return module
    if module.endswith("LayerNorm"):
        return f"{module}/{'gamma' if leaf == 'weight' else 'beta'}"
    return f"{module}/{'kernel' if leaf == 'weight' else 'bias'}"


def describe(folder: Path, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Describe the checkpoint from which `load_initial_checkpoint(folder)` read `weights`, as plain values."""
    with import_safetensors().safe_open(find(folder), "pt") as file:
        index_md5 = (file.metadata() or {}).get(INDEX_MD5)
    return {
        "checkpoint": "tensorflow" if index_md5 else "safetensors",
        "checkpoint_parameters": sum(tensor.numel() for tensor in weights.values()),
        "checkpoint_sha256": weights_sha256(weights),
        "checkpoint_is_mlperfs": index_md5 == MLPERF_INDEX_MD5,
    }


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over all tensors by name: a JSON line with name, type and shape, then the bytes by row."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = weights[name].detach().cpu().contiguous().numpy()
        digest.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode() + b"\n")
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def self_check(accuracy: float) -> None:
    """Compare the untrained accuracy of MLPerf's checkpoint on MLPerf's evaluation set with the published value. Raises
    DataError if they differ by more than `SELF_CHECK_TOLERANCE`."""
    if not abs(accuracy - SELF_CHECK_ACCURACY) <= SELF_CHECK_TOLERANCE:  # so that NaN fails
        raise DataError(
            f"before training the masked-token accuracy is {accuracy:.5f}; for MLPerf's checkpoint and evaluation"
            f" set it is {SELF_CHECK_ACCURACY} +- {SELF_CHECK_TOLERANCE}. Checkpoint, evaluation set or"
            " model is not MLPerf's; a run would not be comparable."
        )
