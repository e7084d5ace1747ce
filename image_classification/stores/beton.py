"""FFCV's .beton files, version 2 (Leclerc et al. 2023; ffcv 1.0.2: types.py, writer.py, memory_allocator.py), written
without FFCV and the same for any number of processes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from image_classification.preparation.shard import EncodedImage, MadeShard, SourceImage, StoreFormat
from image_classification.stores.manifest import StoreConfig, check_size, read_manifest, require_format
from image_classification.stores.sample_index import ROW, ImageTable, ResizedImages, table_files, table_of_shards
from timedrun.errors import DataError
from timedrun.storage.atomic_file import FileWriter, StoredFile
from timedrun.training.sampling import random_uniform

BETON_VERSION = 2
PAGE = 1 << 23
"""FFCV's default, 8 MiB; a larger power of two where an image does not fit."""
LARGEST_PAGE = 1 << 31
JPEG, RAW = 0, 1
INTEGER_FIELD, IMAGE_FIELD = 1, 2
SHARE_SEED = 0
"""Which images are JPEG is part of the file, so no run's seed has a say in it."""
COLUMNS = ("mode", "height", "width", "original_height", "original_width")
_CHUNK = 1 << 23

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
"""A packed image field of 13 bytes, then the aligned label."""
ALLOCATION = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])


@dataclass(frozen=True)
class BetonFacts:
    """What the tables of a .beton file say; no image was read."""

    page_size: int
    fields: tuple[str, ...]
    samples: NDArray[np.void]
    """(n,) `SAMPLE`"""
    allocations: NDArray[np.void]
    """(n,) `ALLOCATION`"""

    @property
    def jpeg_images(self) -> int:
        """Images that are kept as JPEG."""
        return int((self.samples["mode"] == JPEG).sum())


class BetonImages(ResizedImages):
    """A split ("train", "evaluation") of a store of format beton: its file, and the numbers that lie beside it."""

    def __init__(self, folder: Path, split: str) -> None:
        """Raises DataError where there is no such store, its index is damaged, or the file has another size."""
        self.folder, self.split = folder, split
        manifest = read_manifest(folder)
        require_format(folder, manifest, "beton", [split])
        name = beton_name(split)
        if name not in manifest.files:
            raise DataError(f"{folder / name}: not listed among the store's files; prepare it again.")
        check_size(folder, name, manifest.files[name])
        self.path = folder / name
        self.table = ImageTable.open(folder, split, manifest.files, ROW)
        self.table.check_shards(folder / table_files(split)[0], [manifest.files[name].bytes])
        self.table.check_sizes(folder / table_files(split)[0])

    def __reduce__(self) -> tuple[type[BetonImages], tuple[Path, str]]:
        return type(self), (self.folder, self.split)

    @property
    def files(self) -> list[Path]:
        """The one file of the images."""
        return [self.path]


def beton_name(split: str) -> str:
    """The path of a split's file within its store."""
    return f"{split}.beton"


def describe(path: Path) -> BetonFacts:
    """The tables of a file with the fields image and label.

    Raises:
        DataError: no such file, or its tables are cut off or do not fit each other.
    """
    try:
        length = path.stat().st_size
        with path.open("rb") as stream:
            header = _records(stream.read(HEADER.itemsize), HEADER, 1)[0]
            if header["version"] != BETON_VERSION:
                raise ValueError(f"version {header['version']}, only {BETON_VERSION} is read")
            count = int(header["num_samples"])
            fields = _records(stream.read(FIELD.itemsize * 2), FIELD, int(header["num_fields"]))
            names = tuple(name.decode("ascii") for name in fields["name"])
            if fields["type_id"].tolist() != [IMAGE_FIELD, INTEGER_FIELD]:
                raise ValueError(f"fields {', '.join(names)}, not an image and an integer")
            if count * (SAMPLE.itemsize + ALLOCATION.itemsize) > length:
                raise ValueError(f"too short for {count:,} images")
            samples = _records(stream.read(SAMPLE.itemsize * count), SAMPLE, count)
            stream.seek(int(header["alloc_table_ptr"]))
            allocations = _records(stream.read(), ALLOCATION, count)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise DataError(f"{path}: no whole .beton file ({error}); prepare it again.") from None
    ordered = np.sort(allocations["ptr"])
    if not np.array_equal(ordered, np.sort(samples["data_ptr"])) or _outside(allocations, header["alloc_table_ptr"]):
        raise DataError(f"{path}: its images and its allocation table do not fit each other; prepare it again.")
    return BetonFacts(int(header["page_size"]), names, samples, allocations)


def _outside(allocations: NDArray[np.void], end: np.uint64) -> bool:
    """Whether an image reaches beyond `end`; without sums, which could pass the largest number and come out small."""
    begins, sizes = allocations["ptr"], allocations["size"]
    return bool((begins > end).any()) or bool((sizes > end - begins).any())


def is_jpeg(position: int, share: float) -> bool:
    """Whether the image at that place of its split is kept as JPEG, by chance, but always the same."""
    return bool(random_uniform(SHARE_SEED, 0, np.array([position]), stream="beton_jpeg", count=1)[0, 0] < share)


def reduced_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """(height, width) of which the longest side is at most `longest`, if not 0; rounded down as FFCV does."""
    ratio = longest / max(height, width)
    if not longest or ratio >= 1:
        return height, width
    return max(1, int(ratio * height)), max(1, int(ratio * width))


def encode_beton(image: SourceImage, settings: StoreConfig, split: str) -> EncodedImage:
    """The image as JPEG or as pixels, made smaller where it is too large.

    Where FFCV takes OpenCV's INTER_AREA this takes Pillow's Hamming filter, which is closest to it (45 dB; box 34 dB).
    A file that already is an RGB JPEG of the right size is kept as it is if all images are to be JPEG (`size` 0 and
    `jpeg_share` 1): nothing is lost, and nothing to do.

    Raises:
        DataError: the image is too large for the format.
    """
    from PIL import Image

    original_width, original_height = image.decoded.size
    height, width = reduced_size(original_height, original_width, settings.size)
    if max(height, width) >= 1 << 16:
        raise DataError(
            f"{image.item.name}: {width}x{height} pixels, a .beton file holds at most 65535 a side; set "
            "--data.store.size."
        )
    as_jpeg = is_jpeg(image.position, settings.jpeg_share)
    row = (JPEG if as_jpeg else RAW, height, width, original_height, original_width)
    if as_jpeg and settings.size == 0 and settings.jpeg_share == 1 and _is_rgb_jpeg(image):
        return EncodedImage(image.data, row)
    pixels = image.rgb
    if (height, width) != (original_height, original_width):
        pixels = pixels.resize((width, height), Image.Resampling.HAMMING)
    if not as_jpeg:
        return EncodedImage(pixels.tobytes(), row)
    buffer = io.BytesIO()
    pixels.save(buffer, "JPEG", quality=settings.jpeg_quality, subsampling="4:2:0")
    return EncodedImage(buffer.getvalue(), row)


def _is_rgb_jpeg(image: SourceImage) -> bool:
    return image.decoded.format == "JPEG" and image.decoded.mode == "RGB"


def places(sizes: NDArray[np.int64], begin: int, page: int) -> tuple[NDArray[np.int64], int]:
    """Where images of so many bytes lie, (n,), and the end of the last page: in order from `begin` on, rounded up to
    whole pages, none across two pages."""
    found = np.empty(len(sizes), dtype=np.int64)
    start = -(-begin // page) * page
    used = 0
    for index, size in enumerate(sizes.tolist()):
        if used + size > page:
            start, used = start + page, 0
        found[index] = start + used
        used += size
    return found, start + page if used else start


def page_size(largest: int) -> int:
    """FFCV's default, or the smallest power of two that an image of `largest` bytes fits into.

    Raises:
        DataError: there is none.
    """
    page = max(PAGE, 1 << (largest - 1).bit_length() if largest else 0)
    if page > LARGEST_PAGE:
        raise DataError(f"an image of {largest:,} bytes fits in no page of a .beton file; set --data.store.size.")
    return page


def finish_file(folder: Path, split: str, shards: Sequence[MadeShard]) -> Mapping[str, StoredFile]:
    """Writes the split's file from its shards, and its index; holds their tables and 8 MiB of images at once.

    Raises:
        DataError: a shard is not what it was, or an image is too large for any page.
    """
    table = table_of_shards(shards, COLUMNS)
    sizes = table.column("bytes").astype(np.int64)
    count = len(table)
    page = page_size(int(sizes.max(initial=0)))
    tables = HEADER.itemsize + 2 * FIELD.itemsize + count * SAMPLE.itemsize
    found, end = places(sizes, tables, page)

    header = np.array([(BETON_VERSION, 2, page, count, end)], dtype=HEADER)
    fields = np.zeros(2, dtype=FIELD)
    fields["type_id"], fields["name"] = (IMAGE_FIELD, INTEGER_FIELD), (b"image", b"label")
    samples = np.zeros(count, dtype=SAMPLE)
    for column in ("label", "height", "width"):
        samples[column] = table.column(column)
    samples["data_ptr"] = found
    if shards:
        samples["mode"] = np.concatenate([shard.rows[:, COLUMNS.index("mode")] for shard in shards])
    allocations = np.zeros(count, dtype=ALLOCATION)
    allocations["sample_id"], allocations["ptr"], allocations["size"] = np.arange(count), found, sizes

    writer = FileWriter(folder / beton_name(split))
    try:
        written = 0
        for part in (header, fields, samples):
            writer.write(part.tobytes())
            written += part.nbytes
        for begin, chunk in _chunks(folder, shards, found):
            _pad(writer, begin - written)
            writer.write(chunk)
            written = begin + len(chunk)
        _pad(writer, end - written)
        writer.write(allocations.tobytes())
        stored = writer.complete()
    except BaseException:
        writer.discard()
        raise
    table.rows["offset"], table.rows["shard"] = found, 0
    return {beton_name(split): stored, **table.write(folder, split)}


def _chunks(folder: Path, shards: Sequence[MadeShard], found: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    """(place in the new file, bytes) in order; images that follow each other here and there are read together."""
    first = 0
    for shard in shards:
        count = len(shard.names)
        here, there = shard.offsets, found[first : first + count]
        first += count
        if not count:
            continue
        check_size(folder, shard.file, shard.stored)
        begins = np.flatnonzero(np.diff(there - here[:-1], prepend=-1)).tolist()
        with (folder / shard.file).open("rb") as stream:
            for begin, end in zip(begins, [*begins[1:], count], strict=True):
                place, left = int(there[begin]), int(here[end] - here[begin])
                stream.seek(int(here[begin]))
                while left:
                    chunk = stream.read(min(left, _CHUNK))
                    if not chunk:
                        raise DataError(f"{folder / shard.file}: cut off while it was read; run prepare again.")
                    yield place, chunk
                    place, left = place + len(chunk), left - len(chunk)


def _pad(writer: FileWriter, count: int) -> None:
    while count:
        part = min(count, _CHUNK)
        writer.write(bytes(part))
        count -= part


def bytes_per_image(settings: StoreConfig, split: str, source: float) -> float:
    """At ImageNet's mean proportions, 4 to 3; a JPEG of quality 90 takes about a tenth of its pixels."""
    share = settings.jpeg_share
    if not settings.size:
        return share * source + (1 - share) * source * 10
    pixels = 3.0 * settings.size**2 * 3 / 4
    return share * min(source, pixels / 10) + (1 - share) * pixels


def _records(data: bytes, kind: np.dtype[Any], count: int) -> NDArray[np.void]:
    """Raises ValueError where `data` is not exactly so many records."""
    if len(data) != kind.itemsize * count:
        raise ValueError(f"{len(data):,} bytes where {kind.itemsize * count:,} are expected")
    return np.frombuffer(data, dtype=kind)


FORMAT = StoreFormat(
    encode=encode_beton, finish=finish_file, columns=COLUMNS, keeps_shards=False, bytes_per_image=bytes_per_image
)
