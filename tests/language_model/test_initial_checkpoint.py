"""MLPerf's initial checkpoint: names against transformers' BERT, the published size, and what does not fit, named."""

import hashlib
import importlib.util
import math
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from judging.ground.errors import DataError
from language_model import initial_checkpoint
from language_model.model import build_reference, import_transformers
from language_model.settings import BertArchitecture
from language_model.weights import shapes

numpy_files = pytest.importorskip("safetensors.numpy", reason="needs timedrun[language]")
safetensors = pytest.importorskip("safetensors.torch", reason="needs timedrun[language]")
if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs timedrun[language]: transformers", allow_module_level=True)

TINY = BertArchitecture(layers=12, hidden=8, heads=2, intermediate=12, positions=10, vocabulary=23)
MODULES = {
    "bert/embeddings/LayerNorm": "bert.embeddings.LayerNorm",
    "bert/pooler/dense": "bert.pooler.dense",
    "cls/predictions/transform/dense": "cls.predictions.transform.dense",
    "cls/predictions/transform/LayerNorm": "cls.predictions.transform.LayerNorm",
}
PARTS = ("attention/self/query", "attention/self/key", "attention/self/value", "attention/output/dense")
PARTS += ("attention/output/LayerNorm", "intermediate/dense", "output/dense", "output/LayerNorm")
for _layer in range(TINY.layers):
    for _part in PARTS:
        MODULES[f"bert/encoder/layer_{_layer}/{_part}"] = f"bert.encoder.layer.{_layer}.{_part.replace('/', '.')}"
SINGLE = {
    "bert/embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
    "bert/embeddings/position_embeddings": "bert.embeddings.position_embeddings.weight",
    "bert/embeddings/token_type_embeddings": "bert.embeddings.token_type_embeddings.weight",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
Arrays = dict[str, npt.NDArray[Any]]
CONVERSION = (
    r"scripts/convert_bert_checkpoint\.py \S+/model\.ckpt-28252 \S+/model\.safetensors .*The initial checkpoint"
)


def in_mlperfs_names(state: dict[str, Tensor]) -> Arrays:
    """What TensorFlow's reference would save of transformers' state: kernels (in, out), no decoder, LAMB's slots."""
    arrays = {ours: state[theirs].numpy() for ours, theirs in SINGLE.items()}
    for ours, theirs in MODULES.items():
        weight, bias = state[theirs + ".weight"].numpy(), state[theirs + ".bias"].numpy()
        norm = ours.endswith("LayerNorm")
        arrays[ours + ("/gamma" if norm else "/kernel")] = weight if norm else np.ascontiguousarray(weight.T)
        arrays[ours + ("/beta" if norm else "/bias")] = bias
    slots = {f"{name}/{slot}": array + 1 for name, array in arrays.items() for slot in ("LAMB", "LAMB_1")}
    power = np.array(0.5, np.float32)
    return {**arrays, **slots, "beta1_power": power, "beta2_power": power, "global_step": np.array(28252)}


@pytest.fixture(scope="module")
def original() -> Any:
    """transformers' BertForPreTraining of TINY's size, every parameter random, biases and norms too."""
    torch.manual_seed(0)
    transformers = import_transformers()
    config = build_reference(TINY, 0).model.config
    model = transformers.BertForPreTraining(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture(scope="module")
def arrays(original: Any) -> Arrays:
    return in_mlperfs_names(original.state_dict())


@pytest.fixture
def folder(tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the conversion's script writes of a TensorFlow checkpoint, here of a stand-in for TensorFlow's reader."""
    reader = SimpleNamespace(get_variable_to_shape_map=lambda: arrays, get_tensor=arrays.get)
    train = SimpleNamespace(load_checkpoint=lambda prefix: reader)
    (tmp_path / "model.ckpt-28252.index").write_bytes(b"an index")
    out = tmp_path / "converted" / "model.safetensors"
    out.parent.mkdir()
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(train=train))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "model.ckpt-28252"), str(out)])
    runpy.run_path(str(Path(__file__).parents[2] / "scripts/convert_bert_checkpoint.py"))
    return out.parent


def test_a_checkpoint_in_mlperfs_names_gives_transformers_bert_the_same_logits(folder, original):
    weights = initial_checkpoint.load_initial_checkpoint(folder, TINY)
    assert list(weights) == list(shapes(TINY))
    assert {(tensor.dtype, tensor.is_contiguous()) for tensor in weights.values()} == {(torch.float32, True)}
    model = import_transformers().BertForMaskedLM(original.config).eval()
    tied = {
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": weights["cls.predictions.bias"],
    }
    model.load_state_dict({**weights, **tied}, strict=True)
    tokens = torch.randint(0, TINY.vocabulary, (3, TINY.positions))
    segments = torch.randint(0, 2, tokens.shape)
    with torch.no_grad():
        expected = original(input_ids=tokens, token_type_ids=segments).prediction_logits
        assert torch.equal(model(input_ids=tokens, token_type_ids=segments).logits, expected)


def test_everything_in_mlperfs_names_that_does_not_fit_is_named_in_one_error(tmp_path, arrays):
    key = "bert/encoder/layer_3/attention/self/key"
    broken = {
        **{name: array for name, array in arrays.items() if name != key + "/bias"},
        "bert/embeddings/word_embeddings": arrays["bert/embeddings/word_embeddings"][:-1],
        "bert/encoder/layer_0/intermediate/dense/kernel": arrays["bert/encoder/layer_0/output/dense/kernel"],
        "bert/encoder/layer_1/output/dense/kernel": np.zeros((1, 12, 8), np.float32),
        "bert/encoder/layer_12/output/dense/bias": arrays["bert/encoder/layer_3/output/dense/bias"],
    }
    numpy_files.save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(DataError) as caught:
        initial_checkpoint.load_initial_checkpoint(tmp_path, TINY)
    message = str(caught.value)
    for expected in (
        f"{tmp_path}/model.safetensors: the checkpoint does not fit",
        "missing: bert.encoder.layer.3.attention.self.key.bias;",
        "unexpected: bert/encoder/layer_12/output/dense/bias;",
        "bert.embeddings.word_embeddings.weight has shape [22, 8], not [23, 8]",
        "bert.encoder.layer.0.intermediate.dense.weight has shape [8, 12], not [12, 8]",
        "bert.encoder.layer.1.output.dense.weight has shape [1, 12, 8], not [8, 12]",
        "kernels are transposed",
    ):
        assert expected in message
    assert "LAMB" not in message and "pooler" not in message and "seq_relationship" not in message


def test_a_converted_file_and_transformers_give_the_same_weights_and_mlperfs_is_known(folder, original, monkeypatch):
    (hugging_face := folder / "hf").mkdir()
    state = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    safetensors.save_file(state, hugging_face / "model.safetensors")
    monkeypatch.setattr(initial_checkpoint, "MLPERF_INDEX_MD5", hashlib.md5(b"an index").hexdigest())
    described = []
    for path in (folder, hugging_face):
        described.append(initial_checkpoint.describe(path, initial_checkpoint.load_initial_checkpoint(path, TINY)))
    kinds = [(facts.pop("checkpoint"), facts.pop("checkpoint_is_mlperfs")) for facts in described]
    assert kinds == [("tensorflow", True), ("safetensors", False)]
    assert described[0] == described[1]  # the digest of the weights, too
    assert described[0]["checkpoint_parameters"] == sum(math.prod(shape) for shape in shapes(TINY).values())


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], r"it holds none\. Put one there: MLPerf's .*language_model/README\.md"),
        (["a.safetensors", "b.safetensors"], r"it holds a\.safetensors, b\.safetensors"),
        (["model.ckpt-28252.index", "model.ckpt-28252.data-00000-of-00001"], CONVERSION),
        (["model.ckpt-28252.data-00000-of-00001"], CONVERSION),
    ],
)
def test_where_there_is_no_checkpoint_or_several_it_is_said_what_was_found_and_what_to_do(tmp_path, files, words):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=words):
        initial_checkpoint.load_initial_checkpoint(tmp_path, TINY)


def _without_duplicates(state: dict[str, Tensor]) -> None:
    del state["cls.predictions.decoder.weight"], state["cls.predictions.decoder.bias"]


def _old_names(state: dict[str, Tensor]) -> None:
    for name in [name for name in state if "LayerNorm" in name]:
        state[name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")] = state.pop(name)


@pytest.mark.parametrize("change", [_without_duplicates, _old_names])
def test_safetensors_without_tied_copies_or_with_the_names_of_2018_are_read(tmp_path, original, change):
    state = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    change(state)
    safetensors.save_file(state, tmp_path / "model.safetensors")
    weights = initial_checkpoint.load_initial_checkpoint(tmp_path, TINY)
    assert all(torch.equal(tensor, original.state_dict()[name]) for name, tensor in weights.items())


NORM = "bert.embeddings.LayerNorm"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cls.predictions.decoder.weight", lambda tensor: tensor + 1, "weight differs from bert.embeddings.word"),
        (f"{NORM}.bias", lambda tensor: tensor.half(), f"must be float32: {NORM}.bias is"),
        (f"{NORM}.beta", lambda tensor: torch.zeros(TINY.hidden), "under old names .* and under new ones"),
        ("bert.extra", lambda tensor: torch.zeros(1), "unexpected: bert.extra"),
    ],
)
def test_safetensors_that_do_not_fit_are_refused_by_file_and_tensor(tmp_path, original, name, change, message):
    state = {key: tensor.clone() for key, tensor in original.state_dict().items()}
    state[name] = change(state.get(name))
    safetensors.save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=rf"model\.safetensors: .*({message})"):
        initial_checkpoint.load_initial_checkpoint(tmp_path, TINY)


def test_the_weights_digest_depends_on_names_shapes_and_every_bit_but_not_on_order(folder):
    digest = initial_checkpoint.weights_sha256
    weights = initial_checkpoint.load_initial_checkpoint(folder, TINY)
    assert digest(dict(reversed(weights.items()))) == digest(weights)
    bias = weights.pop("cls.predictions.bias")
    nudged = torch.cat((bias[:-1], torch.nextafter(bias[-1:], torch.tensor(math.inf))))
    variants = [{**weights, "cls.predictions.bias": tensor} for tensor in (bias, nudged, bias[None])]
    variants.append({**weights, "cls.predictions.bia": bias})
    assert len({digest(variant) for variant in variants}) == len(variants)


def test_the_self_check_passes_near_mlperfs_initial_accuracy_and_nowhere_else():
    initial_checkpoint.self_check(0.3505)
    for accuracy in (0.3515, 0.3302, 0.0, 0.72, math.nan):
        with pytest.raises(DataError, match="0.34085"):
            initial_checkpoint.self_check(accuracy)
