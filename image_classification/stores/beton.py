"""Store of format beton: FFCV's files, version 2 (Leclerc et al. 2023; ffcv 1.0.2: types.py, writer.py,
memory_allocator.py), written without FFCV and byte-identical for any number of processes."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from image_classification.stores.manifest import StoreConfig, require_split
from image_classification.stores.sample_index import ROW, ResizedImages, SampleIndex, index_files, index_of_shards
from image_classification.stores.store_format import EncodedImage, FinishedShard, SourceImage, StoreFormat
from judging.ground.atomic_file import FileWriter, StoredFile, check_size
from judging.ground.errors import DataError
from timedrun.training.sampling import random_uniform

BETON_VERSION = 2
PAGE = 1 << 23
"""Bytes: FFCV's default, 8 MiB; a larger power of two if an image does not fit."""
JPEG, RAW = 0, 1
INTEGER_FIELD, IMAGE_FIELD = 1, 2
SHARE_SEED = 0
"""Of the choice of JPEG images: part of the file, so independent of a run's seed."""
COLUMNS = ("mode", "height", "width", "original_height", "original_width")

HEADER = np.dtype(
    [
        ("version", "<u2"),
        ("num_fields", "<u2"),
        ("page_size", "<u4"),
        ("num_samples", "<u8"),
        ("alloc_table_ptr", "<u8"),
    ]
)
FIELD = np.dtype([("type_id", "u1"), ("name", "S16"), ("arguments", "V1024")])
SAMPLE = np.dtype(
    {
        "names": ["mode", "width", "height", "data_ptr", "label"],
        "formats": ["u1", "<u2", "<u2", "<u8", "<i8"],
        "offsets": [0, 1, 3, 5, 16],
        "itemsize": 24,
    }
)
"""Packed image field of 13 bytes, followed by the aligned label."""
ALLOCATION = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])


class BetonImages(ResizedImages):
    """File and index of a split ("train", "evaluation") of a store of format beton."""

    def __init__(self, folder: Path, split: str) -> None:
        files = require_split(folder, "beton", split).files
        name = beton_name(split)
        if name not in files:
            raise DataError(f"{folder / name}: not listed among the store's files; prepare it again.")
        check_size(folder, name, files[name])
        self.path = folder / name
        self.index = SampleIndex.open(folder, split, files, ROW)
        self.index.check_shards(folder / index_files(split)[0], [files[name].bytes])
        self.index.check_sizes(folder / index_files(split)[0])


def beton_name(split: str) -> str:
    return f"{split}.beton"


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


def allocate(sizes: NDArray[np.int64], begin: int, page: int) -> tuple[NDArray[np.int64], int]:
    """Return the offsets (n,) of images of these sizes, and the end of the last page.

    Images are in order from `begin` on, rounded up to whole pages; none crosses a page boundary.
    """
    offsets = np.empty(len(sizes), dtype=np.int64)
    start = -(-begin // page) * page
    used = 0
    for index, size in enumerate(sizes.tolist()):
        if used + size > page:
            start, used = start + page, 0
        offsets[index] = start + used
        used += size
    return offsets, start + page if used else start


def page_size(largest: int) -> int:
    """Return FFCV's default, or the smallest power of two that holds an image of `largest` bytes: at most 1 GiB, since
    Pillow decodes no image of more than 179 million pixels."""
    return max(PAGE, 1 << (largest - 1).bit_length() if largest else 0)


def finish_file(folder: Path, split: str, shards: Sequence[FinishedShard]) -> Mapping[str, StoredFile]:
    """Write the split's file from its shards, and its index; memory: their tables and a page of images. Raises
    DataError if a shard changed."""
    index = index_of_shards(shards, COLUMNS)
    sizes = index.rows["bytes"].astype(np.int64)
    count = len(index)
    page = page_size(int(sizes.max(initial=0)))
    tables = HEADER.itemsize + 2 * FIELD.itemsize + count * SAMPLE.itemsize
    offsets, end = allocate(sizes, tables, page)

    header = np.array([(BETON_VERSION, 2, page, count, end)], dtype=HEADER)
    fields = np.zeros(2, dtype=FIELD)
    fields["type_id"], fields["name"] = (IMAGE_FIELD, INTEGER_FIELD), (b"image", b"label")
    samples = np.zeros(count, dtype=SAMPLE)
    for column in ("label", "height", "width"):
        samples[column] = index.rows[column]
    samples["data_ptr"] = offsets
    samples["mode"] = np.concatenate([shard.rows[:, COLUMNS.index("mode")] for shard in shards])
    allocations = np.zeros(count, dtype=ALLOCATION)
    allocations["sample_id"], allocations["ptr"], allocations["size"] = np.arange(count), offsets, sizes

    with FileWriter(folder / beton_name(split)) as writer:
        for part in (header, fields, samples):
            writer.write(part.tobytes())
        written, places = tables, iter(offsets.tolist())
        for shard in shards:
            check_size(folder, shard.file, shard.stored)
            with (folder / shard.file).open("rb") as stream:
                for size in np.diff(shard.offsets).tolist():
                    begin = next(places)
                    writer.write(bytes(begin - written))
                    writer.write(stream.read(size))
                    written = begin + size
        writer.write(bytes(end - written))
        writer.write(allocations.tobytes())
    stored = StoredFile(bytes=end + allocations.nbytes, sha256=writer.sha256)
    index.rows["offset"], index.rows["shard"] = offsets, 0
    return {beton_name(split): stored, **index.write(folder, split)}


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
