"""Images as pixels: decoded and resized once, then read through a memory map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from image_classification.centre_crop import resized
from image_classification.preparation.shard import EncodedImage, MadeShard, SourceImage, StoreFormat
from image_classification.stores.encoded import open_shards
from image_classification.stores.manifest import StoreConfig
from image_classification.stores.mmap_file import mapped
from image_classification.stores.sample_index import ResizedImages, table_files, table_of_shards
from timedrun.errors import DataError
from timedrun.storage.atomic_file import StoredFile

SUFFIX = "rgb"
COLUMNS = ("height", "width", "original_height", "original_width")


class RawImages(ResizedImages):
    """A split ("train", "evaluation_<resize>") of a store of format raw. Opening it reads no pixel."""

    def __init__(self, folder: Path, split_name: str) -> None:
        """Raises DataError where there is no such store or split, its index is damaged, or a shard has another size."""
        self.folder, self.split_name = folder, split_name
        self.table, self.files = open_shards(folder, split_name, "raw", SUFFIX)
        rows = self.table.rows
        area = rows["height"].astype(np.uint64) * rows["width"]
        if bool(((area != rows["bytes"] // 3) | (rows["bytes"] % 3 != 0)).any()):  # area * 3 could pass 64 bits
            raise DataError(f"{folder / table_files(split_name)[0]}: sizes and bytes disagree; prepare it again.")
        self.table.check_sizes(folder / table_files(split_name)[0])
        self._shards = [mapped(path) for path in self.files]
        self._rows = rows[["shard", "offset", "bytes", "height", "width"]]

    def __reduce__(self) -> tuple[type[RawImages], tuple[Path, str]]:
        return type(self), (self.folder, self.split_name)

    def image(self, index: int) -> NDArray[np.uint8]:
        """(height, width, 3) a read-only view of the file; a page of it is read when it is first touched."""
        shard, offset, size, height, width = self._rows[index].item()
        pixels: NDArray[np.uint8] = self._shards[shard][offset : offset + size].reshape(height, width, 3)
        return pixels

    @property
    def shards(self) -> list[NDArray[np.uint8]]:
        """The bytes of each shard."""
        return self._shards

    def places(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(k, 3) shard, offset in it in bytes, and pixels a row, of k images."""
        rows = self._rows[indices]
        return np.stack([rows[name].astype(np.int64) for name in ("shard", "offset", "width")], axis=1)

    def file_of(self, index: int) -> Path:
        """The image's shard."""
        return self.files[int(self.table.column("shard")[index])]


def stored_size(height: int, width: int, settings: StoreConfig, split: str) -> tuple[int, int]:
    """(height, width) that an image is stored in. Training images never grow, unless to a square, where all are alike;
    evaluation images get the short side that the reference's Resize gives them, so that their centres are its own."""
    if split != "train":
        return resized(height, width, int(split.removeprefix("evaluation_")))
    if settings.shape == "square":
        return settings.size, settings.size
    return (height, width) if min(height, width) <= settings.size else resized(height, width, settings.size)


def encode_raw(image: SourceImage, settings: StoreConfig, split: str) -> EncodedImage:
    """The pixels, rows of RGB, resized with Pillow's antialiased bilinear filter where the size differs."""
    from PIL import Image

    original_width, original_height = image.rgb.size
    height, width = stored_size(original_height, original_width, settings, split)
    pixels = image.rgb
    if (height, width) != (original_height, original_width):
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return EncodedImage(pixels.tobytes(), (height, width, original_height, original_width))


def finish_shards(folder: Path, split: str, shards: Sequence[MadeShard]) -> Mapping[str, StoredFile]:
    """Writes the index of a split."""
    return table_of_shards(shards, COLUMNS).write(folder, split)


def bytes_per_image(settings: StoreConfig, split: str, source: float) -> float:
    """At ImageNet's mean proportions, 4 to 3."""
    if split == "train" and settings.shape == "square":
        return 3.0 * settings.size**2
    side = settings.size if split == "train" else int(split.removeprefix("evaluation_"))
    return 4.0 * side**2


FORMAT = StoreFormat(
    encode=encode_raw, finish=finish_shards, columns=COLUMNS, suffix=SUFFIX, bytes_per_image=bytes_per_image
)
