"""Store of format beton: FFCV's files (Leclerc et al. 2023), byte-identical for any number of processes."""

import errno
import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from image_classification.stores.encoded import open_shards
from image_classification.stores.manifest import StoreConfig
from image_classification.stores.sample_index import SampleIndex, index_of_shards
from image_classification.stores.store_format import EncodedImage, FinishedShard, SourceImage, StoreFormat
from judging.ground.atomic_file import DRAFT, StoredFile, check_size, fsync_folder
from judging.ground.errors import DataError
from timedrun.methods.training.sampling import random_uniform

PAGE = 1 << 23
"""Bytes: FFCV's default, 8 MiB; a larger power of two if an image does not fit, at most 1 GiB: Pillow decodes none of
more than 179 million pixels."""
JPEG, RAW = 0, 1
SHARE_SEED = 0
"""Of the choice of JPEG images: part of the file, so independent of a run's seed."""
COLUMNS = ("mode", "height", "width", "original_height", "original_width")
FFCV = (
    "ffcv, which is compiled on installation: apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev (Debian's"
    " names), then pip install 'timedrun[ffcv]'."
)
"""Text on the package to install where it is missing."""


class BetonImages(SampleIndex):
    """File and index of a split ("train", "evaluation") of a store of format beton."""

    def __init__(self, folder: Path, split: str) -> None:
        index, (self.path, *_) = open_shards(folder, split, "beton")
        super().__init__(index.rows, index.names)


@contextmanager
def loading_ffcv() -> Iterator[None]:
    """Restore torch's number of threads, which ffcv changes on import and on opening a file. Raises DataError if ffcv
    does not load."""
    import torch  # not in the processes that write shards

    threads = torch.get_num_threads()
    try:
        yield
    except ImportError as error:
        raise DataError(
            f"ffcv does not load ({error}), so no .beton file was read or written. Install the libraries that it was"
            f" built with, or {FFCV}"
        ) from None
    finally:
        torch.set_num_threads(threads)


def is_jpeg(position: int, share: float) -> bool:
    """Return True if the image at that position of its split is stored as JPEG: random, but always the same."""
    return bool(random_uniform(SHARE_SEED, 0, np.array([position]), stream="beton_jpeg", count=1)[0, 0] < share)


def reduced_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return (height, width) with a longest side of at most `longest`, if not 0; rounded down as FFCV does."""
    ratio = longest / max(height, width)
    if not longest or ratio >= 1:
        return height, width
    return max(1, int(ratio * height)), max(1, int(ratio * width))


def encode_beton(image: SourceImage, settings: StoreConfig, split: str) -> EncodedImage:
    """Return the image as JPEG or as pixels, shrunk if it exceeds the configured size.

    FFCV shrinks with OpenCV's INTER_AREA; this uses Pillow's closest filter, Hamming (45 dB; box 34 dB). An RGB JPEG
    file is copied unchanged if `size` is 0 and `jpeg_share` is 1, which is lossless. Raises DataError if the image is
    too large for the format.
    """
    from PIL import Image

    original_width, original_height = image.decoded.size
    height, width = reduced_size(original_height, original_width, settings.size)
    if max(height, width) >= 1 << 16:
        raise DataError(
            f"{image.item.name}: {width}x{height} pixels, but a .beton file holds at most 65535 per side; set "
            "--data.store.size."
        )
    as_jpeg = is_jpeg(image.position, settings.jpeg_share)
    row = (JPEG if as_jpeg else RAW, height, width, original_height, original_width)
    plain = (image.decoded.format, image.decoded.mode) == ("JPEG", "RGB")
    if plain and settings.size == 0 and settings.jpeg_share == 1:
        return image.data, row
    pixels = image.rgb
    if (height, width) != (original_height, original_width):
        pixels = pixels.resize((width, height), Image.Resampling.HAMMING)
    if not as_jpeg:
        return pixels.tobytes(), row
    buffer = io.BytesIO()
    pixels.save(buffer, "JPEG", quality=settings.jpeg_quality, subsampling="4:2:0")
    return buffer.getvalue(), row


def finish_file(folder: Path, split: str, shards: Sequence[FinishedShard]) -> Mapping[str, StoredFile]:
    """Write the split's file from its shards with FFCV, and its index. Raises DataError if a shard changed.

    FFCV's `from_indexed_dataset` is not used: it waits forever for a worker process that failed.
    """
    from ffcv.fields import IntField, RGBImageField
    from ffcv.memory_allocator import MemoryAllocator
    from ffcv.writer import DatasetWriter

    index = index_of_shards(shards, COLUMNS)
    path = folder / f"{split}.beton"
    draft = path.with_name(path.name + DRAFT)
    try:
        page = max(PAGE, 1 << int(index.rows["bytes"].max(initial=1) - 1).bit_length())
        writer = DatasetWriter(str(draft), {"image": RGBImageField(), "label": IntField()}, page, num_workers=1)
        writer.num_samples = len(index)
        writer.prepare()
        writer.metadata_sm.close()  # memory that it shares with worker processes
        writer.metadata_sm.unlink()
        images = MemoryAllocator(writer.fname, writer.data_region_start, page)
        offsets: list[int] = []
        with images:
            for shard in shards:
                check_size(folder, shard.file, shard.stored)
                with (folder / shard.file).open("rb") as stream:
                    for size in np.diff(shard.offsets).tolist():
                        images.set_current_sample(len(offsets))
                        offset, memory = images.malloc(size)
                        memory[:] = np.frombuffer(stream.read(size), dtype=np.uint8)
                        offsets.append(offset)
        index.rows["offset"], index.rows["shard"] = offsets, 0
        samples = np.zeros(len(index), dtype=writer.metadata_type)
        samples["f0"]["mode"] = np.concatenate([shard.rows[:, COLUMNS.index("mode")] for shard in shards])
        samples["f0"]["height"], samples["f0"]["width"] = index.rows["height"], index.rows["width"]
        samples["f0"]["data_ptr"], samples["f1"] = offsets, index.rows["label"]
        writer.metadata_sm = SimpleNamespace(buf=samples.tobytes())
        writer.finalize(images.allocations)
        if writer.header["alloc_table_ptr"] != images.offset + images.next_page_written.value * page:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # FFCV does not notice that a page was cut short
        with draft.open("rb") as stream:
            os.fsync(stream.fileno())
            stored = StoredFile(bytes=draft.stat().st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())
        os.replace(draft, path)
        fsync_folder(folder)
    finally:
        draft.unlink(missing_ok=True)
    return {path.name: stored, **index.write(folder, split)}


def bytes_per_image(settings: StoreConfig, split: str, source: float) -> float:
    """Estimate the bytes of an image of ImageNet's mean aspect ratio, 4:3, with 10:1 compression as JPEG."""
    share = settings.jpeg_share
    if not settings.size:
        return share * source + (1 - share) * source * 10
    pixels = 3.0 * settings.size**2 * 3 / 4
    return share * min(source, pixels / 10) + (1 - share) * pixels


FORMAT = StoreFormat(
    encode=encode_beton, finish=finish_file, columns=COLUMNS, keeps_shards=False, bytes_per_image=bytes_per_image
)
