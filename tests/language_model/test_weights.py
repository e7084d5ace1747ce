"""Weights: transformers' names and shapes, lossless conversion, errors that name every misfit."""

from dataclasses import replace

import pytest
import torch

from judging.ground.errors import DataError
from language_model.encoder import Bert, shapes
from language_model.model import ReferenceBert
from language_model.settings import SpeedUps
from language_model.weights import ALIASES, WORD, initial_weights, load_safetensors
from tests.language_model.transformers_names import weights_of


def test_names_and_shapes_are_transformers(transformers, tiny):
    state = ReferenceBert(tiny, "eager").model.state_dict()
    assert {name: tuple(t.shape) for name, t in state.items() if name not in ALIASES} == shapes(tiny)
    assert list(ReferenceBert(tiny, "eager").shapes) == list(shapes(tiny))
    for alias, name in ALIASES.items():
        assert state[alias].data_ptr() == state[name].data_ptr()


@pytest.mark.parametrize(("speed_ups", "rows"), [(SpeedUps(), 97), (SpeedUps(fused_qkv=True, pad_vocabulary=64), 128)])
def test_conversion_and_back_is_bit_identical(tiny, lively, speed_ups, rows):
    weights = lively(tiny)
    model = Bert(tiny, speed_ups)
    model.load_weights(weights)
    back = weights_of(model)
    assert list(back) == list(weights)
    assert all(torch.equal(back[name], tensor) for name, tensor in weights.items())
    word = model.embeddings.word_embeddings.weight
    assert word.shape[0] == rows and not word[97:].any()


def test_initial_weights_have_transformers_distribution(transformers, tiny):
    architecture = replace(tiny, hidden=128, vocabulary=2000, initializer_range=0.05)
    own = initial_weights(shapes(architecture), 0.05, 0)
    torch.manual_seed(0)
    theirs = weights_of(ReferenceBert(architecture, "eager"))
    assert own.keys() == theirs.keys()
    for name, tensor in own.items():
        if tensor.dim() == 1:
            assert torch.equal(tensor, theirs[name]), name
        else:
            for drawn in (tensor, theirs[name]):
                assert abs(drawn.std() / 0.05 - 1) < 5 / (2 * drawn.numel()) ** 0.5, name
                assert abs(drawn.mean()) < 5 * 0.05 / drawn.numel() ** 0.5, name
    assert not own[WORD][0].any()
    assert not theirs[WORD][0].any()


def test_every_misfit_is_named_and_no_weight_is_changed(tiny, lively):
    model = Bert(tiny)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = lively(tiny)
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    tensors["bert.encoder.layer.9.output.dense.bias"] = torch.zeros(32)
    tensors[WORD] = torch.zeros(98, 32)
    with pytest.raises(DataError) as error:
        model.load_weights(tensors)
    text = str(error.value)
    assert "missing: bert.encoder.layer.1.output.dense.bias;" in text
    assert "unexpected: bert.encoder.layer.9.output.dense.bias;" in text
    assert f"{WORD} has shape [98, 32], not [97, 32]" in text
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_damaged_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{nonsens")
    for file in (path, tmp_path / "none.safetensors"):
        with pytest.raises(DataError, match=r"\.safetensors cannot be read"):
            load_safetensors(file)
