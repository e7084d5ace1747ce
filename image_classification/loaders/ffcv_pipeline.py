"""Modules of ffcv for the ffcv loader: its reader and native code for .beton files."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ffcv.fields.rgb_image import IMAGE_MODES
from ffcv.libffcv import imdecode, resize_crop
from ffcv.pipeline.compiler import Compiler
from ffcv.reader import Reader

from judging.ground.errors import DataError


class BetonFile:
    """Open .beton file. Opening it reads its tables but no image.

    FFCV's `Loader` is not used: on an error its thread ends silently and the consumer hangs, it skips undecodable
    images, sets torch's number of threads, compiles again for each file, and holds Python sets of every sample's pages.
    """

    def __init__(self, path: Path, name: Callable[[int], str] = "image {}".format) -> None:
        """Raise DataError if the file is missing, damaged or has other fields than an image and a label.

        Args:
            name: image number to its name in errors.
        """
        if not path.is_file():
            raise DataError(f"{path}: no such file; prepare a store of format beton there.")
        try:
            reader = Reader(str(path))
            columns = {name: f"f{number}" for number, name in enumerate(reader.field_names)}
            self._images = np.array(reader.metadata[columns["image"]])
            self.labels = np.array(reader.metadata[columns["label"]], dtype=np.int64).reshape(-1)
            table, declared = reader.alloc_table, int(reader.num_samples)
            pointers, self._modes = self._images["data_ptr"], self._images["mode"]
        except (AssertionError, ValueError, IndexError, KeyError, TypeError, OSError, MemoryError) as error:
            raise DataError(
                f"{path}: not a .beton file of images and labels, or damaged ({type(error).__name__}: {error}); "
                "prepare it again."
            ) from None
        self.path, self._name = path, name
        self._lengths = self._checked_lengths(table, pointers, declared)
        self._file = np.memmap(path, dtype=np.uint8, mode="r")
        largest = self._images["height"].astype(np.int64) * self._images["width"]
        self._scratch_shape, self._scratch = (1, int(largest.max()) * 3), threading.local()
        self._decode = compiled_decoder()

    def __len__(self) -> int:
        return len(self.labels)

    def sizes(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return (n, 2) stored height and width."""
        images = self._images[samples]
        return np.stack([images["height"], images["width"]], axis=1).astype(np.int64)

    def decode(
        self, samples: npt.NDArray[np.int64], crops: npt.NDArray[np.int64], images: npt.NDArray[np.uint8]
    ) -> None:
        """Decode crops (n, 5) top, left, height, width, mirrored of stored images into `images` (n, S, S, 3).

        Releases the GIL and is thread-safe. Raises DataError, which names the image, if one cannot be decoded.
        """
        failed = np.zeros(len(samples), dtype=np.bool_)
        if not hasattr(self._scratch, "bytes"):
            self._scratch.bytes = np.empty(self._scratch_shape, dtype=np.uint8)
        rows = self._images[samples]
        self._decode(self._file, rows, self._lengths[samples], crops, images, failed, self._scratch.bytes)
        if failed.any():
            name = self._name(int(samples[failed.argmax()]))
            raise DataError(
                f"{self.path}: {name} cannot be decoded: its JPEG data is damaged. Restore or prepare it again."
            )

    def _checked_lengths(self, table: Any, pointers: Any, declared: int) -> npt.NDArray[np.int64]:
        """Return the bytes of each image (n,), after checks: compiled code follows the file's tables unchecked."""
        order = np.argsort(table["ptr"])
        starts, lengths = table["ptr"][order], table["size"][order]
        size = np.uint64(self.path.stat().st_size)
        rows = np.minimum(np.searchsorted(starts, pointers), max(len(starts) - 1, 0))
        raw, jpeg = self._modes == IMAGE_MODES["raw"], self._modes == IMAGE_MODES["jpg"]
        pixels = self._images["height"].astype(np.uint64) * self._images["width"].astype(np.uint64)
        problem = ""
        if len(self.labels) != declared or not declared:
            problem = f"it has {len(self.labels)} of {declared} samples"
        elif not len(starts) or (starts[rows] != pointers).any():
            problem = "image offsets and allocation table disagree"
        elif (starts > size).any() or (lengths > size - starts).any():
            problem = "it ends before its last image"
        elif not (raw | jpeg).all() or (raw & (lengths[rows] != 3 * pixels)).any() or not pixels.all():
            problem = "an image's mode or size disagrees with its length"
        if problem:
            raise DataError(f"{self.path}: damaged: {problem}. Restore the file or prepare it again.")
        return np.asarray(lengths[rows], dtype=np.int64)


@functools.cache
def compiled_decoder() -> Callable[..., None]:
    """Compile the crop decoder, once per process for all files and image sizes, in some seconds.

    decode(file (bytes,), rows (n,) of FFCV's image table, lengths (n,) of their data, crops (n, 5), images
    (n, S, S, 3), failed (n,), scratch (1, bytes)). A JPEG whose crop is at least 2, 4 or 8 times the output on both
    sides is decoded at 1/2, 1/4 or 1/8 (scaled DCT).
    """
    jpeg = IMAGE_MODES["jpg"]
    decode_jpeg, resize = Compiler.compile(imdecode), Compiler.compile(resize_crop)

    def decode(file, rows, lengths, crops, images, failed, scratch):  # type: ignore[no-untyped-def]
        size = images.shape[1]
        for number in range(len(rows)):
            begin = np.int64(rows[number]["data_ptr"])
            data = file[begin : begin + lengths[number]]
            height, width = np.int64(rows[number]["height"]), np.int64(rows[number]["width"])
            top, left = crops[number, 0], crops[number, 1]
            bottom, right = top + crops[number, 2], left + crops[number, 3]
            image = images[number]
            # Decoding at a smaller scale costs less; the crop is then in pixels of the scaled image.
            if rows[number]["mode"] == jpeg:
                divisor = 1
                while divisor < 8 and min(crops[number, 2], crops[number, 3]) >= 2 * divisor * size:
                    divisor *= 2
                status = decode_jpeg(data, scratch, height, width, height, width, 0, 0, 1, divisor, False, False)
                failed[number] = status != 0
                half = divisor // 2
                height, width = (height + divisor - 1) // divisor, (width + divisor - 1) // divisor
                top, left = (top + half) // divisor, (left + half) // divisor
                bottom, right = min((bottom + half) // divisor, height), min((right + half) // divisor, width)
                pixels = scratch[0, : height * width * 3].reshape(height, width, 3)
                resize(pixels, top, bottom, left, right, image)
            else:
                resize(data.reshape(height, width, 3), top, bottom, left, right, image)
            # Mirrored by hand: a reversed view of the same memory would overwrite pixels before they are read.
            if crops[number, 4]:
                for row in range(size):
                    for column in range(size // 2):
                        other = size - 1 - column
                        for channel in range(3):
                            kept = image[row, column, channel]
                            image[row, column, channel] = image[row, other, channel]
                            image[row, other, channel] = kept

    # Called without rows, so that it is compiled for these types now and not at the first batch.
    compiled: Callable[..., None] = Compiler.compile(decode)
    row = np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])  # RGBImageField's
    empty = np.empty(0, dtype=np.uint8)
    empty.flags.writeable = False  # as the mapped file
    numbers = np.empty(0, dtype=np.int64)
    compiled(
        empty,
        np.empty(0, dtype=row),
        numbers,
        numbers.reshape(0, 5),
        np.empty((0, 1, 1, 3), dtype=np.uint8),
        np.empty(0, dtype=np.bool_),
        np.empty((1, 1), dtype=np.uint8),
    )
    return compiled
