"""MLPerf's initial checkpoint: names against transformers' BERT, the published size, and what does not fit, named."""

import hashlib
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from judging.ground.errors import DataError
from language_model.model import build_reference, import_transformers
from language_model.settings import BertArchitecture
from language_model.tensorflow_checkpoint import initial_checkpoint
from language_model.weights import shapes
from tests.language_model.tensorflow_checkpoint import bundle_writer as writer

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


def in_mlperfs_names(state: dict[str, Tensor]) -> Arrays:
    """What TensorFlow's reference would save of transformers' state: kernels (in, out), no decoder, LAMB's slots."""
    arrays = {ours: state[theirs].numpy() for ours, theirs in SINGLE.items()}
    for ours, theirs in MODULES.items():
        weight, bias = state[theirs + ".weight"].numpy(), state[theirs + ".bias"].numpy()
        norm = ours.endswith("LayerNorm")
        arrays[ours + ("/gamma" if norm else "/kernel")] = weight if norm else np.ascontiguousarray(weight.T)
        arrays[ours + ("/beta" if norm else "/bias")] = bias
    slots = {f"{name}/{slot}": array + 1 for name, array in arrays.items() for slot in ("LAMB", "LAMB_1")}
    powers = {"beta1_power": np.float32(0.5).reshape(()), "beta2_power": np.float32(0.5).reshape(())}
    return {**arrays, **slots, **powers, "global_step": np.array(28252)}


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
def prefix(tmp_path: Path, arrays: Arrays) -> Path:
    writer.write_bundle(tmp_path / "model.ckpt-28252", arrays, block_entries=40, restart_interval=16)
    return tmp_path / "model.ckpt-28252"


def test_a_checkpoint_in_mlperfs_names_gives_transformers_bert_the_same_logits(prefix, original):
    weights = initial_checkpoint.read_mlperf_checkpoint(prefix, TINY)
    assert list(weights) == list(shapes(TINY))
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


def test_weights_are_contiguous_float32_copies_that_outlive_the_files(prefix):
    weights = initial_checkpoint.read_mlperf_checkpoint(prefix, TINY)
    before = initial_checkpoint.weights_sha256(weights)
    data = prefix.with_name(prefix.name + ".data-00000-of-00001")
    data.write_bytes(bytes(data.stat().st_size))
    assert initial_checkpoint.weights_sha256(weights) == before
    for tensor in weights.values():
        assert (tensor.dtype, tensor.is_contiguous()) == (torch.float32, True)
        tensor.zero_()


def test_everything_that_does_not_fit_is_named_in_one_error_before_any_is_read(tmp_path, arrays):
    key = "bert/encoder/layer_3/attention/self/key"
    broken = {
        **{name: array for name, array in arrays.items() if name != key + "/bias"},
        "bert/embeddings/word_embeddings": arrays["bert/embeddings/word_embeddings"][:-1],
        "bert/encoder/layer_0/intermediate/dense/kernel": arrays["bert/encoder/layer_0/intermediate/dense/kernel"].T,
        key + "/kernel": arrays[key + "/kernel"].astype(np.float64),
        "bert/encoder/layer_12/output/dense/bias": arrays["bert/encoder/layer_3/output/dense/bias"],
    }
    writer.write_bundle(tmp_path / "model", broken)
    data = tmp_path / "model.data-00000-of-00001"
    data.write_bytes(bytes(data.stat().st_size))  # any reading would fail on the checksum
    with pytest.raises(DataError) as caught:
        initial_checkpoint.read_mlperf_checkpoint(tmp_path / "model", TINY)
    message = str(caught.value)
    for expected in (
        "nothing was read",
        f"missing: {key}/bias",
        "unexpected: bert/encoder/layer_12/output/dense/bias",
        "bert/embeddings/word_embeddings has shape [22, 8], not [23, 8]",
        "bert/encoder/layer_0/intermediate/dense/kernel has shape [12, 8], not [8, 12]",
        f"{key}/kernel has TensorFlow's type 2, not 1 (float32)",
    ):
        assert expected in message
    assert "LAMB" not in message and "pooler" not in message and "seq_relationship" not in message


def test_tensorflows_files_and_safetensors_give_the_same_weights_and_mlperfs_are_known(
    prefix, original, tmp_path, monkeypatch
):
    index = prefix.with_name(prefix.name + ".index")
    (tmp_path / "hf").mkdir()
    file = tmp_path / "hf" / "model.safetensors"
    safetensors.save_file({name: tensor.clone() for name, tensor in original.state_dict().items()}, file)
    monkeypatch.setattr(initial_checkpoint, "MLPERF_INDEX_MD5", hashlib.md5(index.read_bytes()).hexdigest())
    described = []
    for folder, found in ((tmp_path, index), (tmp_path / "hf", file)):
        assert initial_checkpoint.find(folder) == found
        described.append(initial_checkpoint.describe(folder, initial_checkpoint.load_initial_checkpoint(folder, TINY)))
    kinds = [(facts.pop("checkpoint"), facts.pop("checkpoint_is_mlperfs")) for facts in described]
    assert kinds == [("tensorflow", True), ("safetensors", False)]
    assert described[0] == described[1]  # the digest of the weights, too
    assert described[0]["checkpoint_parameters"] == sum(math.prod(shape) for shape in shapes(TINY).values())


def test_where_there_is_no_checkpoint_or_several_it_is_said_what_was_found(prefix, tmp_path):
    with pytest.raises(DataError, match=r"PREFIX\.index .* or one \.safetensors file; it holds neither"):
        initial_checkpoint.find(tmp_path / "empty")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"it holds model\.ckpt-28252\.index, model\.safetensors"):
        initial_checkpoint.find(tmp_path)


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


def test_the_weights_digest_depends_on_names_shapes_and_every_bit_but_not_on_order(prefix):
    digest = initial_checkpoint.weights_sha256
    weights = initial_checkpoint.load_initial_checkpoint(prefix.parent, TINY)
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


def test_weights_of_tensorflows_own_file_come_under_transformers_names_kernels_transposed_and_slots_left_out():
    folder = Path(__file__).parent / "tensorflow_2_21"
    shape = BertArchitecture(layers=1, hidden=8, heads=2, intermediate=12, vocabulary=11, positions=6)
    weights = initial_checkpoint.load_initial_checkpoint(folder, shape)
    kernel = "bert.encoder.layer.0.intermediate.dense.weight"
    stored = torch.arange(8 * 12).float().view(8, 12) / 8 + len(initial_checkpoint.mlperf_name(kernel))
    assert torch.equal(weights[kernel], stored.T)
    assert len(weights) == 26
    assert not initial_checkpoint.describe(folder, weights)["checkpoint_is_mlperfs"]
