"""Initial checkpoints: MLPerf's converted and transformers' files give the same weights; what does not fit is named."""

import hashlib
import importlib.util
import math
import runpy
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from judging.ground.errors import DataError
from language_model import initial_checkpoint
from language_model.encoder import shapes
from language_model.initial_checkpoint import load_initial_checkpoint
from language_model.model import build_reference, import_transformers
from language_model.settings import BertArchitecture
from language_model.weights import ALIASES, initial_weights

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
State = dict[str, Tensor]
SCRIPT = Path(__file__).parents[2] / "scripts" / "convert_bert_checkpoint.py"
CONVERSION = rf"scripts/{SCRIPT.name} \S+/model\.ckpt-28252 \S+/model\.safetensors .*The initial checkpoint"
KEY, NORM = "bert/encoder/layer_3/attention/self/key", "bert.embeddings.LayerNorm"
INNER = "bert/encoder/layer_0/intermediate/dense/kernel"


@pytest.fixture(scope="module")
def original() -> State:
    """The weights of transformers' BertForPreTraining of TINY's size, all of them random, biases and norms too."""
    model = import_transformers().BertForPreTraining(build_reference(TINY, 0).model.config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def in_mlperfs_names(state: State) -> State:
    """What TensorFlow's reference would save of transformers' state: kernels (in, out), no decoder, LAMB's slots."""
    stored = {ours: state[theirs] for ours, theirs in SINGLE.items()}
    for ours, theirs in MODULES.items():
        weight, norm = state[theirs + ".weight"], ours.endswith("LayerNorm")
        stored[ours + ("/gamma" if norm else "/kernel")] = weight if norm else weight.T
        stored[ours + ("/beta" if norm else "/bias")] = state[theirs + ".bias"]
    slots = {f"{name}/{slot}": tensor + 1 for name, tensor in stored.items() for slot in ("LAMB", "LAMB_1")}
    return {**stored, **slots, "beta1_power": torch.tensor(0.5), "global_step": torch.tensor(28252)}


def without(names: Collection[str]) -> Callable[[State], State]:
    return lambda state: {name: tensor for name, tensor in state.items() if name not in names}


def save(state: State, folder: Path) -> None:
    safetensors.save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("form", [in_mlperfs_names, dict, *map(without, (ALIASES, ALIASES.values()))])
def test_every_form_of_a_checkpoint_gives_transformers_weights(tmp_path, original, form):
    save(form(original), tmp_path)
    weights = load_initial_checkpoint(tmp_path, shapes(TINY))
    assert list(weights) == list(shapes(TINY))
    for name, tensor in weights.items():
        assert tensor.dtype == torch.float32 and tensor.is_contiguous() and torch.equal(tensor, original[name]), name


def test_the_script_writes_what_tensorflow_reads_and_mlperfs_checkpoint_is_known_by_it(tmp_path, original, monkeypatch):
    stored = in_mlperfs_names(original)
    reader = SimpleNamespace(get_variable_to_shape_map=lambda: stored, get_tensor=lambda name: stored[name].numpy())
    tensorflow = SimpleNamespace(train=SimpleNamespace(load_checkpoint=lambda prefix: reader))
    (tmp_path / "model.ckpt-28252.index").write_bytes(b"an index")
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "model.ckpt-28252"), str(tmp_path / "model.safetensors")])
    runpy.run_path(str(SCRIPT))
    weights = load_initial_checkpoint(tmp_path, shapes(TINY))
    assert all(torch.equal(tensor, original[name]) for name, tensor in weights.items())
    found = initial_checkpoint.describe(tmp_path, weights)
    assert (found["checkpoint"], found["checkpoint_is_mlperfs"]) == ("tensorflow", False)
    assert found["checkpoint_parameters"] == sum(math.prod(shape) for shape in shapes(TINY).values())
    monkeypatch.setattr(initial_checkpoint, "MLPERF_INDEX_MD5", hashlib.md5(b"an index").hexdigest())
    assert initial_checkpoint.describe(tmp_path, weights) == {**found, "checkpoint_is_mlperfs": True}


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
        load_initial_checkpoint(tmp_path, shapes(TINY))


@pytest.mark.parametrize(
    ("form", "name", "change", "message"),
    [
        (dict, "cls.predictions.decoder.weight", lambda old: old + 1, "weight differs from bert.embeddings.word"),
        (dict, f"{NORM}.bias", lambda old: old.half(), f"must be float32: {NORM}.bias is"),
        (dict, "bert.extra", lambda old: torch.zeros(1), "unexpected: bert.extra"),
        (in_mlperfs_names, f"{KEY}/extra", lambda old: torch.zeros(1), f"change.* unexpected: {KEY}/extra"),
        (in_mlperfs_names, f"{KEY}/bias", lambda old: old[1:], r"self\.key\.bias has shape \[7\], not \[8\]"),
        (in_mlperfs_names, f"{KEY}/kernel", lambda old: old.double(), r"must be float32: bert\..*key\.weight"),
        (in_mlperfs_names, INNER, lambda old: old.T, r"shape \[8, 12\], not \[12, 8\].* kernels are transposed"),
        (in_mlperfs_names, INNER, lambda old: old[None], r"has shape \[1, 8, 12\], not \[12, 8\]"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_its_name_and_the_tensors(
    tmp_path, original, form, name, change, message
):
    state = form(original)
    save({**state, name: change(state.get(name))}, tmp_path)
    with pytest.raises(DataError, match=rf"model\.safetensors: .*({message})"):
        load_initial_checkpoint(tmp_path, shapes(TINY))


def test_the_weights_digest_depends_on_names_shapes_and_every_bit_but_not_on_order():
    digest = initial_checkpoint.weights_sha256
    weights = initial_weights(shapes(TINY), 0.02, 0)
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
