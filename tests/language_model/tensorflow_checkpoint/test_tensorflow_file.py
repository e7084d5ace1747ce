"""A checkpoint that TensorFlow 2.21 itself wrote (tf.compat.v1 Saver, a BERT of one layer with LAMB's slots) is read
bit for bit. Every value is its place in the tensor / 8 + the length of the tensor's name."""

from pathlib import Path

import numpy as np
import torch

from language_model.settings import BertArchitecture
from language_model.tensorflow_checkpoint.initial_checkpoint import describe, load_initial_checkpoint, mlperf_name
from language_model.tensorflow_checkpoint.tensor_bundle import TensorBundle

PREFIX = Path(__file__).parent / "tensorflow_2_21" / "model.ckpt-28252"
SHAPE = BertArchitecture(layers=1, hidden=8, heads=2, intermediate=12, vocabulary=11, positions=6)


def test_every_tensor_is_what_tensorflow_stored() -> None:
    bundle = TensorBundle(PREFIX)
    assert len(bundle.entries) == 3 * 30 + 1
    for name in bundle.entries:
        if name == "global_step":
            assert bundle.read(name) == 28_252
            continue
        values = bundle.read(name)
        expected = np.arange(values.size, dtype=np.float32) / 8 + len(name)
        assert values.dtype == np.float32
        assert np.array_equal(values.ravel(), expected), name


def test_weights_come_under_transformers_names_kernels_transposed_and_slots_left_out() -> None:
    weights = load_initial_checkpoint(PREFIX, SHAPE)
    kernel = "bert.encoder.layer.0.intermediate.dense.weight"
    stored = torch.arange(8 * 12).float().view(8, 12) / 8 + len(mlperf_name(kernel))
    assert torch.equal(weights[kernel], stored.T)
    assert len(weights) == 26
    assert not describe(PREFIX, weights)["checkpoint_is_mlperfs"]
