"""Store of format raw: images decoded and resized once, then read through a memory map."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from image_classification.centre_crop import resized
from image_classification.stores.encoded import open_shards
from image_classification.stores.manifest import RESIZED, StoreConfig
from image_classification.stores.sample_index import SampleIndex, index_files, write_index
from image_classification.stores.store_format import EncodedImage, SourceImage, StoreFormat
from judging.ground.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = ("height", "width", "original_height", "original_width")


class RawImages(SampleIndex):
    """Split ("train", "evaluation_<resize>") of a store of format raw. Opening it reads no pixels."""

    def __init__(self, folder: Path, split_name: str) -> None:
        index, files = open_shards(folder, split_name, "raw")
        super().__init__(index.rows, index.names)
        rows, path = self.rows, folder / index_files(split_name)[0]
        area = rows["height"].astype(np.uint64) * rows["width"]
        if bool((3 * area != rows["bytes"]).any()):
            raise DataError(f"{path}: sizes and bytes disagree; prepare it again.")
        self.shards = [mapped(path) for path in files]
        """uint8 (bytes,) of each shard, only to be read."""

    def locations(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return shard, byte offset in it, and pixels per row of k images, (k, 3)."""
        rows = self.rows[indices]
        return np.stack([rows[name].astype(np.int64) for name in ("shard", "offset", "width")], axis=1)


def mapped(path: Path) -> Tensor:
    """Return the bytes of a file as a private memory map. It holds no descriptor: a store may have more shards than a
    process may have open files. Raises DataError if the file cannot be mapped."""
    import torch  # not in the processes that write shards

    try:
        size = path.stat().st_size
        return torch.from_file(str(path), size=size, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be mapped into memory ({error}).") from None


def short_side(settings: StoreConfig, split: str) -> int:
    """Return the short side in pixels: of evaluation images that of the reference's Resize, of others the most."""
    return settings.size if split == "train" else int(split.removeprefix(RESIZED))


def encode_raw(image: SourceImage, settings: StoreConfig, split: str) -> EncodedImage:
    """Return rows of RGB pixels, resized with Pillow's antialiased bilinear filter if the size differs."""
    from PIL import Image

    original_width, original_height = image.rgb.size
    height, width = original_height, original_width
    if split != "train" or min(height, width) > short_side(settings, split):
        height, width = resized(height, width, short_side(settings, split))
    pixels = image.rgb.resize((width, height), Image.Resampling.BILINEAR)  # a copy, if it has this size
    return pixels.tobytes(), (height, width, original_height, original_width)


def bytes_per_image(settings: StoreConfig, split: str, source: float) -> float:
    """Estimate the bytes of an image of ImageNet's mean aspect ratio, 4:3."""
    return 4.0 * short_side(settings, split) ** 2


FORMAT = StoreFormat(
    encode=encode_raw,
    finish=partial(write_index, columns=COLUMNS),
    columns=COLUMNS,
    suffix="rgb",
    bytes_per_image=bytes_per_image,
)
