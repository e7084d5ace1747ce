"""A store's bytes depend on its images and settings alone; what cannot be stored is named and nothing is lost."""

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from image_classification.preparation import builder, shard_maker
from image_classification.preparation.builder import Built, build_store, shard_tasks
from image_classification.preparation.formats import effective
from image_classification.preparation.shard import SourceItem
from image_classification.preparation.shard_maker import WORK
from image_classification.preparation.sources import open_source
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, StoreConfig, verify
from image_classification.stores.raw import RawImages
from tests.image_classification.preparation.samples import CLASSES, fingerprint, image_folder, tars_of
from timedrun import stored_file
from timedrun.errors import DataError, TimedrunError, UsageError

JPEG = StoreConfig(format="jpeg")
RAW = StoreConfig(format="raw", size=16, evaluation_resizes=(16,))
BETON = StoreConfig(format="beton", size=24)
FORMATS = pytest.mark.parametrize("settings", [JPEG, RAW, BETON], ids=lambda settings: settings.format)


def silent(_: str) -> None:
    """No progress."""


def build(
    images: Path | tuple[Path, ...],
    out: Path,
    settings: StoreConfig,
    *,
    labels: Path | None = None,
    workers: int = 1,
    skip_broken: bool = False,
    report: Callable[[str], None] = silent,
) -> Built:
    """A store with 8 images a shard."""
    paths = (images,) if isinstance(images, Path) else images
    return build_store(
        lambda cache: open_source(paths, labels, cache, report),
        out,
        effective(settings, 16),
        workers=workers,
        skip_broken=skip_broken,
        report=report,
        shard_images=8,
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("original") / "images")


@pytest.fixture
def images(tmp_path: Path, original: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(original, tmp_path / "images")
    return tmp_path / "images"


@FORMATS
def test_folder_and_tars_give_the_same_store(tmp_path: Path, original: Path, settings: StoreConfig) -> None:
    train, validation, labels = tars_of(original, tmp_path / "tars")
    first = build(original, tmp_path / "folder", settings)
    build((train, validation), tmp_path / "store", settings, labels=labels)
    assert fingerprint(tmp_path / "store") == fingerprint(tmp_path / "folder")
    assert verify(tmp_path / "store") == first.manifest
    assert set(fingerprint(tmp_path / "store")) == {*first.manifest.files, MANIFEST}
    assert (first.images_made, first.images_found) == (42, 0)


@pytest.mark.processes
def test_two_workers_give_the_same_store(tmp_path: Path, original: Path) -> None:
    lines: list[str] = []
    for settings in (JPEG, RAW, BETON):
        build(original, tmp_path / f"{settings.format}_1", settings)
        build(original, tmp_path / f"{settings.format}_2", settings, workers=2, report=lines.append)
        assert fingerprint(tmp_path / f"{settings.format}_2") == fingerprint(tmp_path / f"{settings.format}_1")
    assert [line.partition(" shards")[0] for line in lines] == [
        "100.0%  42 images in 6 shards".partition(" shards")[0]
    ] * 3


def test_the_manifest_counts_classes_and_lists_what_is_odd(tmp_path: Path, original: Path) -> None:
    manifest = build(original, tmp_path / "store", JPEG).manifest
    assert manifest.classes == CLASSES
    assert manifest.splits["train"].per_class == (10, 10, 10)
    assert manifest.splits["evaluation"].per_class == (4, 4, 4)
    assert manifest.splits["train"].bytes == sum(path.stat().st_size for path in (original / "train").rglob("*.JPEG"))
    expected: dict[str, list[str]] = {}
    for path in sorted(original.rglob("*.JPEG")):
        with Image.open(path) as image:
            kinds = {
                "grayscale": image.mode == "L",
                "cmyk": image.mode == "CMYK",
                "rotated": image.getexif().get(0x0112, 1) != 1,
                "png": image.format == "PNG",
            }
        for kind, holds in kinds.items():
            if holds:
                expected.setdefault(kind, []).append(path.relative_to(original).as_posix())
    assert len(expected) == 4
    assert {kind: list(names) for kind, names in manifest.findings.items()} == expected


def test_stored_images_are_those_of_the_source_in_its_order(tmp_path: Path, original: Path) -> None:
    build(original, tmp_path / "jpeg", JPEG)
    build(original, tmp_path / "raw", RAW)
    source = open_source((original,), None, tmp_path, silent)
    stored, pixels = JpegShards(tmp_path / "jpeg", "train"), RawImages(tmp_path / "raw", "train")
    assert len(stored) == len(pixels) == len(source.splits["train"])
    for place, item in enumerate(source.splits["train"]):
        assert (stored.name(place), int(stored.labels[place])) == (item.name, item.label)
        assert stored.read(place) == item.read()
        assert (pixels.name(place), int(pixels.labels[place])) == (item.name, item.label)
        assert min(pixels.image(place).shape[:2]) == 16


def test_a_whole_store_is_found_whole(tmp_path: Path, original: Path) -> None:
    build(original, tmp_path / "store", RAW)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()}
    lines: list[str] = []
    again = build(original, tmp_path / "store", RAW, report=lines.append)
    assert lines == ["already prepared from the same images and settings"]
    assert (again.images_made, again.images_found) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()} == times


def test_another_evaluation_size_is_added_and_nothing_else_is_made_again(tmp_path: Path, original: Path) -> None:
    both = StoreConfig(format="raw", size=16, evaluation_resizes=(24, 16))
    build(original, tmp_path / "both", both)
    build(original, tmp_path / "store", RAW)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.rgb")}
    built = build(original, tmp_path / "store", StoreConfig(format="raw", size=16, evaluation_resizes=(24,)))
    assert built.images_made == 12
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert fingerprint(tmp_path / "store") == fingerprint(tmp_path / "both")
    assert list(built.manifest.splits) == ["train", "evaluation_16", "evaluation_24"]
    assert build(original, tmp_path / "store", RAW).manifest == built.manifest


@FORMATS
def test_a_lost_or_cut_file_of_a_whole_store_is_made_again(
    tmp_path: Path, original: Path, settings: StoreConfig
) -> None:
    build(original, tmp_path / "store", settings)
    whole = fingerprint(tmp_path / "store")
    for name in sorted(set(whole) - {MANIFEST})[::2]:
        os.truncate(tmp_path / "store" / name, 3)
    (tmp_path / "store" / sorted(set(whole) - {MANIFEST})[1]).unlink()
    build(original, tmp_path / "store", settings)
    assert fingerprint(tmp_path / "store") == whole


def test_other_settings_or_images_in_a_whole_store_are_refused(tmp_path: Path, images: Path) -> None:
    store = tmp_path / "store"
    build(images, store, RAW)
    before = fingerprint(store)
    with pytest.raises(DataError, match=r"prepared otherwise: size is 16 there, 20 now\. It was not touched"):
        build(images, store, StoreConfig(format="raw", size=20))
    with pytest.raises(DataError, match="format is raw there, jpeg now"):
        build(images, store, JPEG)
    (images / "train" / CLASSES[0] / f"{CLASSES[0]}_0.JPEG").unlink()
    with pytest.raises(DataError, match="the images are others"):
        build(images, store, RAW)
    assert fingerprint(store) == before
    assert not (store / WORK).exists()


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path, original: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "precious").write_text("data")
    with pytest.raises(DataError, match="holds precious and no store; nothing was prepared or touched"):
        build(original, tmp_path / "store", JPEG)
    with pytest.raises(DataError, match="is a file"):
        build(original, tmp_path / "store" / "precious", JPEG)
    with pytest.raises(DataError, match="holds train|holds val"):
        build(original, original, JPEG)
    assert list(fingerprint(tmp_path / "store")) == ["precious"]


def test_a_source_that_cannot_be_used_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        build(tmp_path / "none", tmp_path / "a" / "store", JPEG)
    assert not (tmp_path / "a" / "store").exists()


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """The preparation is interrupted when so many shards were made."""
    left = [shards]
    save = shard_maker.save_note

    def saved(*arguments: object) -> None:
        save(*arguments)  # type: ignore[arg-type]
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(shard_maker, "save_note", saved)


@FORMATS
def test_finished_shards_are_kept_for_the_same_plan_only(
    tmp_path: Path, original: Path, settings: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    other = RAW if settings.format == "jpeg" else JPEG
    for plan in (other, settings):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            stop_after(patched, 3)
            build(original, store, plan)
    assert not (store / MANIFEST).exists()
    built = build(original, store, settings)
    assert (built.images_made, built.images_found) == (42 - 24, 24)
    build(original, tmp_path / "clean", settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


def test_an_unfinished_second_evaluation_size_can_be_given_up(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    build(original, store, RAW)
    before = fingerprint(store)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 1)
        build(original, store, StoreConfig(format="raw", size=16, evaluation_resizes=(24,)))
    assert fingerprint(store) != before
    assert verify(store).splits.keys() == {"train", "evaluation_16"}
    build(original, store, RAW)
    assert fingerprint(store) == before


def test_a_file_replaced_by_one_of_the_same_size_is_seen_by_the_rerun(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 4)
        build(images, tmp_path / "store", JPEG)
    for path in (images / "train").rglob("*.JPEG"):
        data = bytearray(path.read_bytes())
        data[-4] ^= 1  # the last pixels'
        path.write_bytes(data)
    assert build(images, tmp_path / "store", JPEG).images_found == 0


@FORMATS
def test_corrupt_images_are_all_named_and_the_rerun_makes_only_their_shards(
    tmp_path: Path, images: Path, settings: StoreConfig
) -> None:
    store, paths = tmp_path / "store", sorted((images / "train").rglob("*.JPEG"))
    build(images, tmp_path / "clean", settings)
    broken = {paths[3]: paths[3].read_bytes(), paths[17]: paths[17].read_bytes()}
    for path, data in broken.items():
        path.write_bytes(data[:-30])
    with pytest.raises(DataError, match="2 images cannot be decoded or read; no store was finished") as caught:
        build(images, store, settings)
    for path in broken:
        assert path.relative_to(images).as_posix() in str(caught.value)
    assert not (store / MANIFEST).exists()
    assert not list(store.rglob("*.draft"))
    for path, data in broken.items():
        path.write_bytes(data)
    sizes = build(images, tmp_path / "sizes", settings)
    assert sizes.images_found == 0
    build(images, store, settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


def test_corrupt_images_are_left_out_and_listed_on_request(tmp_path: Path, images: Path) -> None:
    path = images / "train" / CLASSES[1] / f"{CLASSES[1]}_5.JPEG"
    path.write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1 images cannot be decoded(.|\n)*--skip-broken"):
        build(images, tmp_path / "store", RAW)
    built = build(images, tmp_path / "store", RAW, skip_broken=True)
    assert built.images_made in (6, 8)  # one shard
    assert built.images_made + built.images_found == 42
    name = path.relative_to(images).as_posix()
    assert built.manifest.findings["corrupt"] == (name,)
    assert built.manifest.splits["train"].per_class == (10, 9, 10)
    stored = RawImages(tmp_path / "store", "train")
    assert len(stored) == 29
    assert name not in {stored.name(place) for place in range(29)}
    build(images, tmp_path / "again", RAW, skip_broken=True)
    assert fingerprint(tmp_path / "again") == fingerprint(tmp_path / "store")


def test_a_shard_made_with_corrupt_images_left_out_is_no_excuse_later(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (images / "train").rglob("*_5.JPEG"):
        path.write_bytes(b"no image")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 4)
        build(images, tmp_path / "store", JPEG, skip_broken=True)
    with pytest.raises(DataError, match="3 images cannot be decoded"):
        build(images, tmp_path / "store", JPEG)


def test_a_split_of_which_nothing_decodes_is_refused(tmp_path: Path, images: Path) -> None:
    for path in (images / "val").rglob("*.JPEG"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="not one image of evaluation decodes"):
        build(images, tmp_path / "store", JPEG, skip_broken=True)
    assert not (tmp_path / "store" / MANIFEST).exists()


@FORMATS
@pytest.mark.parametrize("writes", [1, 12, 35, 48, 52])
def test_a_full_disk_loses_nothing(
    tmp_path: Path, original: Path, settings: StoreConfig, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, done = tmp_path / "store", [0]
    write = stored_file.FileWriter.write

    def full(writer: stored_file.FileWriter, data: bytes | memoryview) -> None:
        done[0] += 1
        if done[0] > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(writer, data)

    with monkeypatch.context() as patched:
        patched.setattr(stored_file.FileWriter, "write", full)
        with pytest.raises(DataError, match="No space left on device.*finished shards are kept. Make room"):
            build(original, store, settings)
    assert not (store / MANIFEST).exists()
    built = build(original, store, settings)
    assert writes < 20 or built.images_found > 0
    build(original, tmp_path / "clean", settings)
    assert fingerprint(store) == fingerprint(tmp_path / "clean")


def test_too_little_room_is_found_before_anything_is_written(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(builder.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DataError, match="GB are needed and 0.0 GB are free; nothing was written"):
        build(original, tmp_path / "store", JPEG)
    assert not (tmp_path / "store").exists()


def test_two_preparations_of_one_folder_do_not_meet(tmp_path: Path, original: Path) -> None:
    def second(_: str) -> None:
        with pytest.raises(DataError, match="being prepared by another process"):
            build(original, tmp_path / "store", JPEG)
        met.append(True)

    met: list[bool] = []
    build(original, tmp_path / "store", JPEG, report=second)
    assert met
    assert verify(tmp_path / "store")


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_a_killed_worker_is_an_error_that_names_its_images(tmp_path: Path, images: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    slow = images / "train" / CLASSES[1] / "slow.JPEG"
    Image.fromarray(noise).save(slow)
    for number in range(12):  # seconds of work
        os.link(slow, slow.with_name(f"slow_{number}.JPEG"))
    killed = list[int]()

    def kill() -> None:
        deadline = time.monotonic() + 40
        while not list(tmp_path.glob("store/preparation/notes/*.npz")) and time.monotonic() < deadline:
            time.sleep(0.02)
        for server in psutil.Process().children():
            for worker in server.children():
                killed.append(worker.pid)
                os.kill(worker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(
            TimedrunError, match=r"killed \(SIGKILL.*shard \d of (train|eval)\w* \((train|val)/n.*again, with fewer"
        ):
            build(images, tmp_path / "store", JPEG, workers=2)
    finally:
        killer.join()
    assert killed


def test_shards_are_cut_by_count_and_bytes_and_hold_every_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "SHARD_BYTES", 100)
    generator = np.random.default_rng(3)
    for count in (0, 1, 7, 40):
        sizes = generator.integers(1, 130, count).tolist()
        items = [SourceItem(str(place), 0, "", 0, size) for place, size in enumerate(sizes)]
        tasks = list(shard_tasks("train", items, 5))
        assert [item for task in tasks for item in task.items] == items
        assert [task.number for task in tasks] == list(range(len(tasks)))
        assert [task.first for task in tasks] == [int(task.items[0].name) for task in tasks]
        assert all(len(task.items) <= 5 for task in tasks)
        assert all(sum(item.size for item in task.items) <= 100 for task in tasks if len(task.items) > 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (StoreConfig(), "format folder is read where it lies"),
        (StoreConfig(format="raw"), "raw needs --data.store.size"),
        (StoreConfig(format="beton", jpeg_quality=0), "jpeg-quality must be from 1 to 100"),
        (StoreConfig(format="beton", jpeg_share=1.5), "jpeg-share must be from 0 to 1"),
        (StoreConfig(format="beton", size=-1), "size must not be negative"),
        (StoreConfig(format="raw", size=8, evaluation_resizes=(0,)), "evaluation-resizes must be positive"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: StoreConfig, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        effective(settings, 16)


def test_settings_that_a_format_does_not_use_make_no_other_store() -> None:
    assert effective(StoreConfig(format="jpeg", size=500, jpeg_quality=80), 16) == JPEG
    assert effective(StoreConfig(format="raw", size=8, jpeg_share=0.1), 16).evaluation_resizes == (16,)
    assert effective(StoreConfig(format="raw", size=8, evaluation_resizes=(9, 8, 9)), 16).evaluation_resizes == (8, 9)


def test_files_that_cannot_be_read_are_named_with_the_corrupt_and_left_out_on_request(
    tmp_path: Path, images: Path
) -> None:
    store = tmp_path / "store"
    broken = [images / split / name / "x.JPEG" for split in ("train", "val") for name in CLASSES]
    broken[0].symlink_to(tmp_path / "nowhere")
    broken[1].symlink_to(broken[1])
    broken[2].mkdir()
    broken[3].write_bytes(b"no image")
    broken[4].symlink_to("nowhere")
    broken[5].symlink_to(broken[5])
    names = sorted(path.relative_to(images).as_posix() for path in broken)
    with pytest.raises(DataError, match="6 images cannot be decoded or read") as caught:
        build(images, store, JPEG)
    assert [line.strip().partition(": ")[0] for line in str(caught.value).splitlines()[1:]] == names
    built = build(images, store, JPEG, skip_broken=True)
    assert built.manifest.findings["corrupt"] == tuple(names)
    assert built.manifest.splits["train"].per_class == (10, 10, 10)
    assert verify(store) == built.manifest


def test_an_unreadable_file_that_can_be_read_again_is_not_left_out(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(sorted((images / "train").rglob("*.JPEG"))[0])
    access, opened = os.access, os.open

    def refuse(name: object, *arguments: object, **options: object) -> int:
        if str(name) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, *arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        patched.setattr(os, "access", lambda name, mode: str(name) != path and access(name, mode))
        with pytest.raises(DataError, match="Permission denied"):
            build(images, tmp_path / "store", JPEG)
        with patched.context() as stopped, pytest.raises(KeyboardInterrupt):
            stop_after(stopped, 1)  # the others are there
            build(images, tmp_path / "store", JPEG, skip_broken=True)
    assert build(images, tmp_path / "store", JPEG, skip_broken=True).manifest.findings.get("corrupt") is None


def test_a_preparation_that_began_no_shard_leaves_no_folder(tmp_path: Path, original: Path) -> None:
    train, validation, labels = tars_of(original, tmp_path / "tars")
    with pytest.raises(DataError, match="validation labels cannot be read"):
        build((train, validation), tmp_path / "store", JPEG, labels=tmp_path / "none")
    assert not (tmp_path / "store").exists()
    validation.write_bytes(validation.read_bytes()[:5000])
    with pytest.raises(DataError, match="again"):
        build((train, validation), tmp_path / "store", JPEG, labels=labels)
    assert not (tmp_path / "store").exists()


def test_an_unfinished_store_survives_a_rerun_whose_images_cannot_be_used(
    tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 3)
        build(original, tmp_path / "store", JPEG)
    before = fingerprint(tmp_path / "store")
    with pytest.raises(DataError, match="no such file"):
        build(tmp_path / "none", tmp_path / "store", JPEG)
    assert fingerprint(tmp_path / "store") == before


@pytest.mark.parametrize("out", ["file/x", "file/x/y", "x" * 300])
def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, original: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="nothing was prepared. Give a --data-folder that can be made"):
        build(original, tmp_path / out, JPEG)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
