"""Image data: facts, digests, faults of the config, unused settings, the logged loader, digits, CIFAR-10's records."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from image_classification import cifar10, configs, digits, settings
from image_classification.batches import open_source
from image_classification.datasets import data_digest, declared, facts, preflight, read, synthetic
from image_classification.loaders import crop_kernel
from image_classification.run_info import data_info
from image_classification.settings import DataConfig, ImageRunConfig
from image_classification.stores.manifest import StoreConfig, read_manifest
from judging.ground.errors import DataError
from mlevents import keys
from tests.image_classification.small_image_data import FOLDER, LOADERS
from timedrun.methods import ProgressiveResizing
from timedrun.runner.config import OptimizerConfig, dump, load

LOADED_SMALL = ProgressiveResizing(where="loader")
RAW, JPEG_9 = StoreConfig(format="raw", size=9), StoreConfig(format="jpeg", size=9)


def test_preflight_of_stored_images_reports_every_fault_once(prepared):
    config = configs.imagenet_methods()
    small = replace(config, global_batch=2, model=replace(config.model, classes=2), data=FOLDER)
    assert preflight(small, prepared["jpeg"], 1) == []
    wrong = replace(config, data=replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=32), padding=3))
    found = preflight(wrong, prepared["raw"], 1)
    sizes, classes = "made with size 24, but the config has 32", "2 classes, but the model has 1000"
    for words in ("data.padding", sizes, classes, "global batch"):
        assert sum(words in line for line in found) == 1, words
    missing = replace(wrong, data=replace(wrong.data, eval_resize=22))
    found = preflight(missing, prepared["raw"], 1)
    assert sum("no evaluation images of short side 22" in line for line in found) == 1
    assert len([line for line in preflight(wrong, prepared["folder"], 1) if "not a complete image store" in line]) == 1
    assert any("needs a data folder" in line for line in preflight(wrong, None, 1))


def test_a_batch_that_leaves_few_steps_an_epoch_is_refused_with_one_that_fits_and_its_rate(prepared):
    config = replace(configs.imagenet_methods(), global_batch=8, data=FOLDER)
    config = replace(config, model=replace(config.model, classes=2))
    rate, decay = config.optimizer.peak_lr / 4, config.optimizer.weight_decay / 4
    (problem,) = preflight(config, prepared["jpeg"], 1)
    assert "global batch 8 makes 3 of the 10 or more optimizer steps that a run needs in an epoch of 30" in problem
    assert problem.endswith(f"--global-batch 2 --optimizer.peak-lr {rate:.3g} --optimizer.weight-decay {decay:.3g}.")
    adamw = replace(config, optimizer=OptimizerConfig(kind="adamw", peak_lr=1e-3))
    assert preflight(adamw, prepared["jpeg"], 1)[0].endswith("--global-batch 2 --optimizer.peak-lr 0.00025.")


def test_the_run_info_names_loader_store_and_order(monkeypatch):
    data = replace(configs.imagenet_baseline().data, workers=4)
    assert data_info(data) == {
        keys.DATA_LOADER: "turbojpeg",
        keys.DATA_STORE: "jpeg, original size",
        keys.DATA_ORDER: "random",
        keys.DATA_WORKERS: 4,
        keys.DATA_PREFETCH: 3,
    }
    memory = {keys.DATA_LOADER: "memory", keys.DATA_ORDER: "random"}
    assert data_info(configs.digits_methods().data) == memory
    for scripted, words in ((True, "raw"), (False, "raw, not scripted")):
        monkeypatch.setattr(crop_kernel, "SCRIPTED", scripted)
        assert data_info(replace(data, loader="raw"))[keys.DATA_LOADER] == words


def test_workers_are_the_cores_of_a_rank_less_one(monkeypatch):
    monkeypatch.setattr(settings, "usable_cores", lambda: 16)
    data = configs.imagenet_baseline().data
    assert data.workers_here == 15
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert data.workers_here == data_info(data)[keys.DATA_WORKERS] == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert data.workers_here == 1 and replace(data, workers=0).workers_here == 0


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("synthetic_smoke", {"model": {"classes": 3}}, "10 classes, but the model has 3"),
        ("synthetic_smoke", {"model": {"channels": 1}}, "3 channels, the model 1"),
        ("synthetic_smoke", {"global_batch": 1024}, "exceeds the 512 training samples"),
        ("synthetic_smoke", {"data": {"source": "cifar10"}}, "needs a data folder"),
        ("synthetic_smoke", {"data": {"synthetic_eval": 3}}, "3 evaluation images cannot be divided over 4"),
        ("digits_methods", {"data": {"loader": "ffcv", "prefetch": 9}}, "data.loader (leave it at 'pillow'), data."),
        ("digits_methods", {"data": {"store": RAW}}, "data.store.format (leave it at 'folder'), data"),
        ("digits_methods", {"data": {"synthetic_train": 4}}, "data.synthetic_train (leave it at 0)"),
        ("digits_methods", {"data": {"train_size": 16}}, "digits has images of 8 px"),
        ("digits_methods", {"methods": (LOADED_SMALL,)}, "--methods.progressive-resizing.where batch"),
        ("imagenet_methods", {"data": {"padding": 4}}, "data.padding (leave it at 0)"),
        ("imagenet_methods", {"data": {"store": JPEG_9}}, "effect for image_folder, format jpeg: data.store.size"),
        ("imagenet_methods", {"data": {"prefetch": -1}}, "0 or more"),
    ],
)
def test_a_config_that_does_not_fit_its_data_or_has_an_unused_setting_is_refused(name, changes, words):
    config = getattr(configs, name)()
    changed = {
        key: replace(getattr(config, key), **value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    problems = preflight(replace(config, **changed), None, 4)
    assert sum(words in problem for problem in problems) == 1, problems


@pytest.mark.parametrize(("name", "old", "new"), [("digits", False, "none"), ("cifar10", True, "random")])
def test_a_recorded_config_with_a_switch_of_flips_is_read(name, old, new):
    config = getattr(configs, f"{name}_baseline")()
    values = dump(config)
    assert values["data"]["flip"] == new
    values["data"]["flip"] = old
    assert load(ImageRunConfig, values) == config
    stored = dump(configs.imagenet_baseline())
    stored["data"]["flip"] = old
    assert load(ImageRunConfig, stored).data.flip == "random"  # stored images were flipped whatever the switch said


def digest(config: DataConfig, folder: Path | None = None) -> str:
    return data_digest(replace(configs.synthetic_smoke(), data=config), folder)["sha256"]


def test_the_digest_in_memory_is_of_every_pixel_and_label(cifar_folder, monkeypatch):
    known = digest(replace(FOLDER, source="cifar10"), cifar_folder)
    assert digest(replace(FOLDER, source="cifar10", train_size=8), cifar_folder) == known
    with open(cifar_folder / "test_batch.bin", "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert digest(replace(FOLDER, source="cifar10"), cifar_folder) != known
    digits_digest = digest(replace(FOLDER, source="digits"))
    read = digits.read
    monkeypatch.setattr(digits, "read", lambda split: (read(split)[0] + (split == "evaluation"), read(split)[1]))
    assert digest(replace(FOLDER, source="digits")) != digits_digest


@pytest.mark.parametrize("store", [LOADERS["raw"], LOADERS["pillow"]], ids=lambda store: store.format)
def test_facts_and_digest_of_stored_images_are_of_the_manifest(prepared, store):
    config = replace(configs.imagenet_methods(), data=replace(FOLDER, store=store))
    known, manifest = facts(config.data, prepared[store.format]), read_manifest(prepared[store.format])
    assert (known.train_samples, known.eval_samples, known.classes, known.channels) == (30, 6, 2, 3)
    of = "the manifest, with the SHA-256 of every file"
    assert data_digest(config, prepared[store.format]) == {"sha256": manifest.digest, "of": of}


def test_the_digest_of_noise_depends_on_its_counts_and_not_on_the_seed():
    config = configs.synthetic_smoke()
    known = data_digest(config, None)
    assert data_digest(replace(config, seed=9), None) == known
    assert digest(replace(config.data, synthetic_train=513)) != known["sha256"]


def test_digits_are_split_the_same_way_every_time_and_without_overlap():
    (train, train_labels), (held_out, labels) = digits.read("train"), digits.read("evaluation")
    assert len(train) + len(held_out) == digits.TOTAL and len(held_out) == digits.EVALUATION == len(labels)
    assert train.dtype == torch.uint8 and (int(train.min()), int(train.max())) == (0, 255)
    assert np.bincount(labels).min() > 0.7 * len(labels) / 10
    from sklearn.datasets import load_digits

    together = torch.cat([train, held_out]).flatten(1).sort(0).values
    original = torch.from_numpy(np.rint(load_digits().data * 255 / 16).astype(np.uint8)).sort(0).values
    assert torch.equal(together, original)
    assert torch.equal(digits.read("train")[1], train_labels)


@pytest.mark.parametrize(("source", "held_out", "images"), [("digits", 225, 897), ("cifar10", 50, 50_000)])
def test_a_tuning_split_is_of_training_images_and_reads_no_others(source, held_out, images, cifar_folder, monkeypatch):
    assert cifar10.TUNING == 5_000
    monkeypatch.setattr(cifar10, "TUNING", 50)  # of the few images of the folder
    config = getattr(configs, f"{source}_baseline")().data
    whole = read(config, cifar_folder, "train")
    module = digits if source == "digits" else cifar10
    asked: list[str] = []
    original = module.read
    monkeypatch.setattr(module, "read", lambda *given: asked.append(given[-1]) or original(*given))
    tuning = replace(config, split="tuning")
    parts = [read(tuning, cifar_folder, split) for split in ("train", "evaluation")]
    assert asked == ["train", "train"] and len(parts[1][1]) == held_out
    assert all(torch.equal(torch.cat(both), of) for both, of in zip(zip(*parts, strict=True), whole, strict=True))
    known = facts(tuning, cifar_folder)
    assert (known.train_samples, known.eval_samples) == (images - held_out, held_out)


def test_noise_stands_in_for_imagenet_at_every_size_without_filling_the_memory():
    recipe = configs.imagenet_mild()
    small = replace(recipe, data=replace(recipe.data, train_size=8, eval_size=8, eval_resize=9))
    config = synthetic(small, Path())
    assert preflight(config, None, 1) == [] and facts(config.data, None) == declared(recipe.data)
    source = open_source(config.data, None, torch.device("cpu"), train=True, seed=1)
    (batch,) = source.batches([np.array([0, 1_281_166])], 1, 6)
    assert len(source) == 1_281_167 and batch.images.shape == (2, 3, 6, 6)


def test_cifar10_records_are_a_label_and_three_colour_planes(cifar_folder):
    images, labels = cifar10.read(cifar_folder, "evaluation")
    raw = np.fromfile(cifar_folder / "test_batch.bin", dtype=np.uint8)
    assert images.shape == (50, 3, 32, 32) and labels[1] == raw[3073]
    assert images[1, 2, 5, 7] == raw[3073 + 1 + 2 * 1024 + 5 * 32 + 7]
    assert len(cifar10.read(cifar_folder, "train")[0]) == 250


def test_damaged_cifar10_is_named(cifar_folder):
    with pytest.raises(DataError, match="SHA-1"):
        cifar10.verify(cifar_folder)
    path = cifar_folder / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[3073] = 11
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch\.bin: image 1 has label 11"):
        cifar10.read(cifar_folder, "evaluation")
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"test_batch\.bin: not 153,650 bytes"):
        cifar10.require(cifar_folder)
    path.unlink()
    (cifar_folder / "data_batch_1").touch()
    with pytest.raises(DataError, match=r"test_batch\.bin missing.*pickled"):
        cifar10.require(cifar_folder)
