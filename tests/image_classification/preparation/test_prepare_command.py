"""`timedrun prepare` for images: build, check, and refuse conflicting options."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from image_classification.configs import ImageRunConfig, digits_baseline, imagenet_baseline
from image_classification.prepare import prepare
from image_classification.stores.manifest import StoreConfig
from judging.ground.errors import DataError, TimedrunError, UsageError
from tests.image_classification.small_stores import CLASSES, write_files
from timedrun.cli import main


def config_of(store: StoreConfig) -> ImageRunConfig:
    config = imagenet_baseline()
    loader = {"folder": "pillow", "jpeg": "pillow", "raw": "raw", "beton": "ffcv"}[store.format]
    return replace(config, data=replace(config.data, store=store, loader=loader, eval_resize=16))


RAW = config_of(StoreConfig(format="raw", size=16))


def test_evaluation_images_that_are_also_training_images_and_files_that_are_not_read_are_named(
    tmp_path, images, capsys
):
    copied = (images / "train/ant/train_00000004.JPEG").read_bytes()
    padded = copied[:-2] + b"\xff\xd8"
    write_files(images / "val/bee", {"leak.JPEG": copied, "same_size_and_beginning.JPEG": padded})
    write_files(images / "train/yak", {"a.AVIF": b"unread", ".hidden": b"left behind"})
    made = prepare(RAW, tmp_path / "store", decode=False, workers=1, images=images)
    (unread,) = (note for note in made["notes"] if "were not read" in note)
    assert unread.endswith("for their endings (.avif: 1): train/yak/a.AVIF") and unread in capsys.readouterr().err
    note = next(note for note in made["notes"] if "also training images" in note)
    assert note.startswith("1 of 14 evaluation images")
    assert "val/bee/leak.JPEG (training: train/ant/train_00000004.JPEG)" in note


def test_a_store_is_made_checked_and_found_damaged(tmp_path, original):
    store = tmp_path / "store"
    made = prepare(RAW, store, decode=False, workers=1, images=original)
    assert (made["format"], made["classes"]) == ("raw", 3) and (made["train"], made["evaluation_16"]) == (30, 12)
    assert made["images_per_second"] > 0
    kept = {key: made[key] for key in made if key not in ("seconds", "images_per_second", "notes")}
    assert prepare(RAW, store, decode=False, workers=1) == kept
    files = len([path for path in store.rglob("*") if path.is_file()]) - 1
    assert prepare(RAW, store, decode=True, workers=1) == kept | {"verified_files": files}
    shard = store / "train" / "00000.rgb"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train/00000\.rgb: truncated"):
        prepare(RAW, store, decode=False, workers=1)


def test_options_that_do_not_go_together_are_refused(tmp_path, original):
    cases: list[tuple[ImageRunConfig, Path | None, dict[str, object], type[TimedrunError], str]] = [
        (digits_baseline(), None, {"images": original}, UsageError, "trains on digits and does not use --images"),
        (RAW, None, {"images": original}, UsageError, "--images needs --data-folder"),
        (
            RAW,
            tmp_path,
            {"images": tmp_path / "x.tar"},
            DataError,
            "x.tar: no train/ folder; --images is a folder of train/",
        ),
        (RAW, original, {}, DataError, f"Make a store of them: --images {original} --data-folder STORE"),
        (config_of(StoreConfig()), tmp_path, {"images": original}, UsageError, "set --data.store.format jpeg, raw"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for config, folder, options, kind, words in cases:
        with pytest.raises(kind, match=words):
            prepare(config, folder, decode=False, workers=1, **options)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_beton_store_without_ffcv_is_refused_before_anything_is_made(tmp_path, original, monkeypatch):
    monkeypatch.setitem(sys.modules, "ffcv.writer", None)
    monkeypatch.setitem(sys.modules, "ffcv", None)
    with pytest.raises(DataError, match=r"ffcv does not load .*pip install 'timedrun\[ffcv\]'"):
        prepare(config_of(StoreConfig(format="beton")), tmp_path / "store", decode=False, workers=1, images=original)
    assert not (tmp_path / "store").exists()


def test_the_next_command_has_the_setting_that_the_data_need(tmp_path, images, capsys):
    words = ["prepare", "image_classification", "baseline", "--data", "imagenet", "--images", str(images)]
    assert main([*words, "--workers", "1", "--data-folder", str(tmp_path / "store"), "--seed", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"store --seed 3 --model.classes {len(CLASSES)}")
