"""Loaders by name: torchvision's images by the reference, its images of every store by the others, and all problems at
once before an image is read."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from image_classification.augmentation import train_crops
from image_classification.loaders import crop_kernel
from image_classification.loaders.registry import LOADERS
from image_classification.settings import LoaderName
from image_classification.stores.encoded import JpegShards
from image_classification.stores.manifest import MANIFEST, StoreConfig
from judging.ground.errors import DataError
from tests.image_classification import small_image_data
from tests.image_classification.small_image_data import loaded, opened, pixels
from tests.image_classification.small_stores import CLASSES, JPEG, NEEDS_FFCV, encoded, make_store, photographs, smooth

PHOTOGRAPHS = photographs(40)
RAW = StoreConfig(format="raw", size=48, evaluation_resizes=(72,))
BETON, BETON_JPEG, BETON_SMALL = (
    StoreConfig(format="beton", size=size, jpeg_share=share) for size, share in ((0, 0.0), (0, 1.0), (90, 0.5))
)


def problems(loader: LoaderName, store: StoreConfig, folder: Path | None, *, eval_size: int = 16) -> list[str]:
    return LOADERS[loader].problems(replace(small_image_data.FOLDER, store=store, eval_size=eval_size), folder)


@pytest.fixture(scope="module")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[StoreConfig], Path]:
    """Return the store of the photographs with these settings, made once, in the order of the folder's index."""
    made: dict[StoreConfig, Path] = {}

    def stored(settings: StoreConfig) -> Path:
        if settings not in made:
            made[settings] = tmp_path_factory.mktemp(settings.format)
            make_store(made[settings], settings, PHOTOGRAPHS, per_shard=15)
        return made[settings]

    return stored


@pytest.mark.parametrize(
    ("name", "store", "train", "size", "most", "mean"),
    [
        ("turbojpeg", JPEG, True, 120, 2, 0.5),  # crops that are decoded whole
        ("turbojpeg", JPEG, False, 64, 2, 0.5),
        ("raw", RAW, False, 64, 0, 0),
        ("raw", RAW, False, 33, 0, 0),
        # FFCV has another filter: it is compared on the smooth images.
        pytest.param("ffcv", BETON, True, 64, 30, 5, marks=NEEDS_FFCV),
        pytest.param("ffcv", BETON, False, 64, 30, 5, marks=NEEDS_FFCV),
        pytest.param("ffcv", BETON_JPEG, True, 64, 60, 7, marks=NEEDS_FFCV),
        pytest.param("ffcv", BETON_JPEG, False, 64, 60, 7, marks=NEEDS_FFCV),
        pytest.param("ffcv", BETON_SMALL, True, 40, 60, 7, marks=NEEDS_FFCV),  # made smaller when it was stored
    ],
    ids=lambda value: getattr(value, "format", None),
)
def test_every_loader_has_the_references_image_of_every_store(store_of, name, store, train, size, most, mean):
    samples = [number for number, path in enumerate(sorted(PHOTOGRAPHS)) if name != "ffcv" or "/ant/" in path]
    options = {"train": train, "eval_resize": 72, "eval_size": size if not train else 16, "seed": 3}
    parts = [samples[:7], samples[7:], [sample + len(PHOTOGRAPHS) for sample in samples[:7] if train]]
    ours = loaded(name, store_of(store), parts, size, store=store, workers=2, **options)
    theirs = loaded("pillow", store_of(JPEG), parts, size, **options)
    for batch, reference in zip(ours, theirs, strict=True):
        assert batch.labels.tolist() == reference.labels.tolist()
        difference = np.abs(pixels(batch) - pixels(reference))
        assert difference.max(initial=0) <= most
        assert difference.mean((1, 2, 3)).max(initial=0) <= mean
    if train:  # a repetition is the same image, cropped again
        assert ours[2].labels.tolist() == ours[0].labels.tolist() and (pixels(ours[2]) != pixels(ours[0])).any()


@pytest.mark.parametrize(("train", "size"), [(True, 24), (False, 32), (False, 33), (False, 40)])
def test_the_references_images_are_torchvisions_resized_crop_of_their_box_or_its_central_crop(
    tmp_path, torchvision, train, size
):
    from torchvision.transforms import functional, v2

    files = photographs(30, largest=90)
    make_store(tmp_path, JPEG, files)
    options = {"eval_resize": 40, "eval_size": size, "train": train, "seed": 5}
    (batch,) = loaded("pillow", tmp_path, [range(30)], size, epoch=3 if train else 0, **options)
    central = v2.Compose([v2.Resize(40), v2.CenterCrop(size)])
    for sample, data in enumerate(files.values()):
        image = Image.open(BytesIO(data))
        boxes, flips = train_crops(5, 3, np.array([sample]), np.array([(image.height, image.width)]), flip="random")
        crop = functional.resized_crop(image, *boxes[0].tolist(), [size, size])
        expected = (functional.hflip(crop) if flips[0] else crop) if train else central(image)
        assert np.array_equal(pixels(batch)[sample], np.asarray(expected))


JPEG_FILE = encoded(smooth(60, 80))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", ["pillow", "turbojpeg"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.95])
def test_a_damaged_image_is_named_and_the_loader_stays_usable(tmp_path, name, share, train):
    data = JPEG_FILE[: int(share * len(JPEG_FILE))]
    files = {f"train/{CLASSES[number % 2]}/{number}.jpg": JPEG_FILE for number in range(9)}
    make_store(tmp_path, JPEG, dict(sorted(files.items())))
    for split in ("train", "evaluation"):
        images = JpegShards(tmp_path, split)
        row = images.rows[8]
        with images.files[row["shard"]].open("r+b") as file:
            file.seek(int(row["offset"]))
            file.write(data.ljust(len(JPEG_FILE), b"\0"))
    with closing(opened(name, tmp_path, train=train, workers=2)) as loader:
        with pytest.raises(DataError, match=r"bee/7.jpg: cannot be decoded") as raised:
            list(loader.batches([np.arange(9)] * 3, 1, 16))
        assert "Traceback" not in str(raised.value)
        assert len(list(loader.batches([np.array([0, 1])] * 2, 1, 16))) == 2


def test_all_problems_are_reported_at_once_and_before_the_loader_opens(prepared, tmp_path, monkeypatch):
    store = Path(shutil.copytree(prepared["jpeg"], tmp_path / "jpeg"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    values = json.loads((store / MANIFEST).read_text())
    values["splits"].pop("evaluation")
    (store / MANIFEST).write_text(json.dumps(values))
    (store / "train/00000.jpegs").unlink()
    found = problems("ffcv", JPEG, store, eval_size=30)
    extra, instead = "pip install 'timedrun[ffcv]'", "use --data.loader pillow or turbojpeg"
    formats = f"loader ffcv reads format beton, not jpeg; {instead}, or --data.store.format beton."
    for message in ("needs ffcv", extra, formats, "no split evaluation", "missing", "data.eval_resize"):
        assert sum(message in problem for problem in found) == 1, message
    with pytest.raises(DataError, match=r"needs Pillow.* no split evaluation.*00000\.jpegs: missing"):
        opened("pillow", store)
    assert any("no loader reads images from a folder" in problem for problem in problems("pillow", StoreConfig(), None))


def test_raw_crops_are_compiled_before_the_loader_opens(prepared):
    crop_kernel.scripted.cache_clear()
    LOADERS["raw"].compile_ahead()
    compiled = crop_kernel.scripted.cache_info().misses
    assert compiled == 2
    for train in (True, False):
        opened("raw", prepared["raw"], train=train).close()
    assert crop_kernel.scripted.cache_info().misses == compiled
