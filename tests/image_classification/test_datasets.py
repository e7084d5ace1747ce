"""Image data before a run: facts, faults of the config, unused settings, and the logged loader."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from image_classification import image_folder, settings
from image_classification.configs import digits_methods, imagenet_baseline, imagenet_methods, synthetic_smoke
from image_classification.datasets import data_files, facts, preflight, unused_settings
from image_classification.loaders import crop_kernel
from image_classification.run_info import data_info
from image_classification.stores.manifest import Format, StoreConfig, read_manifest
from judging.ground.errors import DataError
from mlevents import keys
from tests.image_classification.small_image_data import FOLDER, LOADERS
from timedrun.methods import ProgressiveResizing


def test_a_folder_that_is_not_prepared_or_was_edited_is_refused(image_tree: Path) -> None:
    with pytest.raises(DataError, match="Run: timedrun prepare"):
        facts(FOLDER, image_tree)
    image_folder.write_index(image_folder.make_index(image_tree, []), image_tree)
    path = image_tree / image_folder.INDEX
    path.write_text(path.read_text().replace("bee", "fly"))
    with pytest.raises(DataError, match="damaged or edited"):
        facts(FOLDER, image_tree)
    (image_tree / "val" / "wasp").mkdir()
    with pytest.raises(DataError, match="class 'wasp' is not among the 2 classes"):
        image_folder.make_index(image_tree, [])


@pytest.mark.parametrize("store", [*LOADERS.values(), StoreConfig()], ids=lambda store: store.format)
def test_facts_of_a_store_come_from_its_manifest(prepared: dict[Format, Path], store: StoreConfig) -> None:
    known = facts(replace(FOLDER, store=store), prepared[store.format])
    assert (known.train_samples, known.eval_samples, known.classes, known.channels) == (29, 6, 2, 3)


@pytest.mark.parametrize("store", LOADERS.values(), ids=lambda store: store.format)
def test_a_store_of_another_format_is_refused_with_its_format(prepared: dict[Format, Path], store: StoreConfig) -> None:
    other: Format = "raw" if store.format != "raw" else "jpeg"
    with pytest.raises(DataError, match=rf"holds {other}.*the config needs format {store.format}"):
        facts(replace(FOLDER, store=store), prepared[other])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: replace(c, model=replace(c.model, classes=3)), "10 classes, but the model has 3"),
        (lambda c: replace(c, model=replace(c.model, channels=1)), "3 channels, the model 1"),
        (lambda c: replace(c, global_batch=1024), "exceeds the 512 training samples"),
        (lambda c: replace(c, data=replace(c.data, source="cifar10")), "needs a data folder"),
    ],
)
def test_a_config_that_does_not_fit_its_data_is_refused(change: Callable[..., object], words: str) -> None:
    assert any(words in failure for failure in preflight(change(synthetic_smoke()), None, 1))  # type: ignore[arg-type]


def test_preflight_of_stored_images_reports_every_fault_once(prepared: dict[Format, Path]) -> None:
    config = imagenet_methods()
    small = replace(config, global_batch=8, model=replace(config.model, classes=2), data=FOLDER)
    assert preflight(small, prepared["folder"], 1) == []
    assert preflight(replace(small, data=replace(FOLDER, store=StoreConfig(format="jpeg"))), prepared["jpeg"], 1) == []
    wrong = replace(config, data=replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=32), padding=3))
    found = preflight(wrong, prepared["raw"], 1)
    for words in (
        "data.padding",
        "made with size 24, but the config has 32",
        "2 classes, but the model has 1000",
        "global batch",
    ):
        assert sum(words in line for line in found) == 1, words
    missing = replace(wrong, data=replace(wrong.data, eval_resize=22))
    found = preflight(missing, prepared["raw"], 1)
    assert sum("no evaluation images of short side 22" in line for line in found) == 1
    assert len([line for line in preflight(wrong, prepared["folder"], 1) if "not a complete image store" in line]) == 1
    assert any("needs a data folder" in line for line in preflight(wrong, None, 1))


def test_the_run_info_names_loader_store_and_order() -> None:
    data = replace(imagenet_baseline().data, workers=4)
    assert data_info(data) == {
        keys.DATA_LOADER: "turbojpeg",
        keys.DATA_STORE: "jpeg, original size",
        keys.DATA_ORDER: "random",
        keys.DATA_WORKERS: 4,
        keys.DATA_PREFETCH: 3,
    }
    quasi = replace(digits_methods().data, order="quasi_random")
    assert data_info(quasi) == {
        keys.DATA_LOADER: "memory",
        keys.DATA_ORDER: "quasi_random, 64 blocks of 256 samples",
    }


def test_workers_are_the_cores_of_a_rank_less_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usable_cores", lambda: 16)
    data = imagenet_baseline().data
    assert data.workers_here == 15
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert data.workers_here == data_info(data)[keys.DATA_WORKERS] == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert data.workers_here == 1 and replace(data, workers=0).workers_here == 0


def test_the_run_info_says_if_raw_crops_are_not_scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=24))
    monkeypatch.setattr(crop_kernel, "SCRIPTED", True)
    assert data_info(config)[keys.DATA_LOADER] == "raw"
    monkeypatch.setattr(crop_kernel, "SCRIPTED", False)
    assert data_info(config)[keys.DATA_LOADER] == "raw, not scripted"


@pytest.mark.parametrize("config", [imagenet_baseline, imagenet_methods, digits_methods, synthetic_smoke])
def test_no_config_has_an_unused_setting(config: Callable[[], Any]) -> None:
    assert unused_settings(config().data) == []


def test_a_former_default_without_effect_is_accepted_in_a_recorded_config() -> None:
    assert unused_settings(replace(digits_methods().data, workers=4)) == []
    assert unused_settings(replace(digits_methods().data, workers=2)) != []


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (digits_methods, {"read_ahead": True}, "without effect for digits and order random: data.read_ahead"),
        (digits_methods, {"loader": "ffcv", "prefetch": 9}, "data.loader (leave it at 'pillow'), data.prefetch (leave"),
        (
            digits_methods,
            {"store": StoreConfig(format="raw", size=9)},
            "data.store.format (leave it at 'folder'), data",
        ),
        (digits_methods, {"synthetic_train": 4}, "data.synthetic_train (leave it at 0)"),
        (digits_methods, {"train_size": 16}, "digits has images of 8 px"),
        (imagenet_methods, {"padding": 4}, "data.padding (leave it at 0)"),
        (imagenet_methods, {"order_block": 8}, "order random: data.order_block (leave it at 256)"),
        (
            imagenet_methods,
            {"store": StoreConfig(format="jpeg", size=9)},
            "format jpeg and order random: data.store.size",
        ),
        (imagenet_methods, {"store": StoreConfig(format="raw", size=9, jpeg_quality=3)}, "data.store.jpeg_quality"),
        (imagenet_methods, {"order": "quasi_random", "order_window": 0}, "at least 1"),
        (imagenet_methods, {"prefetch": -1}, "0 or more"),
    ],
)
def test_an_unused_or_impossible_setting_is_refused(
    config: Callable[[], Any], changes: dict[str, Any], words: str
) -> None:
    chosen = config()
    found = preflight(replace(chosen, data=replace(chosen.data, **changes)), None, 1)
    assert sum(words in line for line in found) == 1, found


def test_progressive_resizing_in_the_loader_is_refused_for_images_in_memory() -> None:
    method = ProgressiveResizing(where="loader")
    found = preflight(replace(synthetic_smoke(), methods=(method,)), None, 1)
    assert [line for line in found if "--methods.progressive-resizing.where batch" in line]
    assert preflight(replace(synthetic_smoke(), methods=(ProgressiveResizing(),)), None, 1) == []


def test_the_files_of_a_store_are_those_that_a_run_reads(prepared: dict[Format, Path]) -> None:
    found = data_files(replace(FOLDER, loader="raw", store=StoreConfig(format="raw", size=24)), prepared["raw"])
    assert found is not None
    names = [path.relative_to(prepared["raw"]).as_posix() for path in found]
    assert names[0].startswith("train") and names[-1].startswith("evaluation_20")
    assert set(names) == set(read_manifest(prepared["raw"]).files)
    assert found.bytes == sum(path.stat().st_size for path in found)
    assert [found[place] for place in range(len(found))] == list(found)
    folder = data_files(FOLDER, prepared["folder"])
    assert folder is not None
    paths = list(folder)
    assert (len(folder), len(paths)) == (35, 35)
    assert folder.bytes == sum(path.stat().st_size for path in paths)
    assert [folder[place] for place in range(len(folder))] == paths
    assert data_files(digits_methods().data, None) is None
