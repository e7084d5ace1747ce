"""Initial weights of MLPerf's BERT, from TensorFlow's files or safetensors, under transformers' names."""

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
from language_model.settings import BertArchitecture
from language_model.tensorflow_checkpoint.tensor_bundle import FLOAT32, TensorBundle
from language_model.weights import check, load_safetensors, shapes

OPTIMIZER_STATE = ("adam_m", "adam_v", "LAMB", "LAMB_1", "global_step", "beta1_power", "beta2_power")
"""Last name components of tensors that are not weights."""
UNUSED = ("bert/pooler/", "cls/seq_relationship/")
"""Weights of the next-sentence task, unused by masked-token prediction."""

MLPERF_INDEX_MD5 = "f97de3ae180eb8d479555c939d50d048"
"""MD5 of model.ckpt-28252.index (tf1), from MLPerf's reference (training/language_model/tensorflow/bert/README).
The index holds a checksum of every tensor, and those are verified, so this index implies MLPerf's weights."""

SELF_CHECK_ACCURACY = 0.34085
"""Masked-token accuracy of MLPerf's untrained checkpoint on MLPerf's 10,000 evaluation sequences: the reference value
for loaders (tinygrad's external_test_checkpoint_loading.py, which cites MLPerf's README)."""
SELF_CHECK_TOLERANCE = 0.01
"""Half a percent is due to newly paired sequences and to bf16."""


def find(folder: Path) -> Path:
    """Return the file of the only initial checkpoint in `folder`: PREFIX.index of TensorFlow's, or a .safetensors file.
    Raises DataError if there is none, or more than one."""
    files = sorted([*folder.glob("*.index"), *folder.glob("*.safetensors")])
    if len(files) == 1:
        return files[0]
    names = ", ".join(file.name for file in files) or "neither"
    raise DataError(
        f"{folder}: training starts from one initial checkpoint in this folder, PREFIX.index with its data files"
        f" (TensorFlow; MLPerf's is model.ckpt-28252, tf1) or one .safetensors file; it holds {names}. Put one there."
    )


def load_initial_checkpoint(folder: Path, architecture: BertArchitecture) -> dict[str, Tensor]:
    """Load the weights in `folder` (see `find`): names and shapes of `weights.shapes`, float32, CPU, tied ones once.
    Raises DataError if the checkpoint is absent, damaged or not of `architecture`, with all missing, unexpected and
    mismatched tensors; UsageError if safetensors is not installed."""
    file = find(folder)
    if file.suffix == ".index":
        return read_mlperf_checkpoint(file.with_suffix(""), architecture)
    stored = load_safetensors(file)
    renamed = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))  # since files of 2018
    tensors = {name.replace(*renamed[0]).replace(*renamed[1]): tensor for name, tensor in stored.items()}
    if len(tensors) < len(stored):
        raise DataError(f"{file}: holds layer norms under old names (gamma, beta) and under new ones; remove one.")
    try:
        weights = check(tensors, architecture)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    if other := [f"{name} is {tensor.dtype}" for name, tensor in weights.items() if tensor.dtype != torch.float32]:
        raise DataError(f"{file}: weights to start from must be float32: {', '.join(other)}.")
    return weights


def read_mlperf_checkpoint(prefix: Path, architecture: BertArchitecture) -> dict[str, Tensor]:
    """Read the weights of a TensorFlow BERT in PREFIX.index and PREFIX.data-* as float32 under transformers' names.

    Kernels are transposed: TensorFlow multiplies from the left, (in, out), torch keeps (out, in). The decoder is the
    word embeddings in both. Optimizer state and the next-sentence task's weights (`UNUSED`) are not read. Raises
    DataError if the files are missing or damaged, or, with all differences, if names, shapes or types do not match
    `architecture`.
    """
    bundle = TensorBundle(prefix)
    wanted = {mlperf_name(name): (name, shape) for name, shape in shapes(architecture).items()}
    problems = [f"missing: {name}" for name in wanted if name not in bundle.entries]
    problems += [
        f"unexpected: {name}"
        for name in sorted(bundle.entries.keys() - wanted.keys())
        if not name.startswith(UNUSED) and name.rpartition("/")[2] not in OPTIMIZER_STATE
    ]
    for name, (_, shape) in wanted.items():
        if entry := bundle.entries.get(name):
            expected = shape[::-1] if name.endswith("/kernel") else shape
            if entry.shape != expected:
                problems.append(f"{name} has shape {list(entry.shape)}, not {list(expected)}")
            elif entry.dtype != FLOAT32:
                problems.append(f"{name} has TensorFlow's type {entry.dtype}, not {FLOAT32} (float32)")
    if problems:
        raise DataError(
            f"{prefix}: not a BERT checkpoint of this architecture in MLPerf's names; nothing was read. "
            + "; ".join(problems)
        )
    weights = {}
    for source, (name, _) in wanted.items():
        # Always copy: a mapped array is read-only and does not outlive the file.
        tensor = torch.from_numpy(np.array(bundle.read(source)))
        weights[name] = tensor.t().contiguous() if source.endswith("/kernel") else tensor
    return weights


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
    file = find(folder)
    tensorflow = file.suffix == ".index"
    return {
        "checkpoint": "tensorflow" if tensorflow else "safetensors",
        "checkpoint_parameters": sum(tensor.numel() for tensor in weights.values()),
        "checkpoint_sha256": weights_sha256(weights),
        "checkpoint_is_mlperfs": tensorflow
        and hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() == MLPERF_INDEX_MD5,
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
