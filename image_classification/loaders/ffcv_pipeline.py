"""Modules of ffcv for the ffcv loader: its reader and native code for .beton files."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from ffcv.fields.rgb_image import IMAGE_MODES
from ffcv.libffcv import imdecode, resize_crop
from ffcv.pipeline.compiler import Compiler
from ffcv.reader import Reader

from image_classification.loaders.decode_pool import ThreadBuffers
from image_classification.stores.beton import BetonImages
from judging.ground.errors import DataError


class BetonFile:
    """Open .beton file. Opening it reads its tables but no image.

    FFCV's `Loader` is not used: on an error its thread ends silently and the consumer hangs, it skips undecodable
    images, sets torch's number of threads, compiles again for each file, and holds Python sets of every sample's pages.
    """

    def __init__(self, store: BetonImages) -> None:
        """Raise DataError if the file is damaged or is not that of the store's index, whose rows have been checked:
        compiled code follows the file's tables unchecked."""
        self._store, rows = store, store.rows
        try:
            self._images, labels = (Reader(str(store.path)).metadata[column] for column in ("f0", "f1"))
            same = np.array_equal(labels, rows["label"]) and all(
                np.array_equal(self._images[name], rows[column])
                for name, column in (("data_ptr", "offset"), ("height", "height"), ("width", "width"))
            )
            raw, jpeg = (self._images["mode"] == IMAGE_MODES[mode] for mode in ("raw", "jpg"))
        except (AssertionError, ValueError, IndexError, KeyError, TypeError, OSError, MemoryError):
            same = False
        self._lengths, pixels = rows["bytes"].astype(np.int64), store.sizes.astype(np.int64).prod(axis=1)
        if not same or not (jpeg | (raw & (self._lengths == 3 * pixels))).all():
            raise DataError(
                f"{store.path}: damaged, or not the file of the store's index. Restore the file or prepare it again."
            )
        self._file = np.memmap(store.path, dtype=np.uint8, mode="r")
        self._largest, self._buffers = int(pixels.max()), ThreadBuffers()
        self._decode = compiled_decoder()

    def decode(
        self, samples: npt.NDArray[np.int64], crops: npt.NDArray[np.int64], images: npt.NDArray[np.uint8]
    ) -> None:
        """Decode crops (n, 5) top, left, height, width, mirrored of stored images into `images` (n, S, S, 3).

        Releases the GIL and is thread-safe. Raises DataError, which names the image, if one cannot be decoded.
        """
        failed = np.zeros(len(samples), dtype=np.bool_)
        scratch = self._buffers.take("decoded", 3 * self._largest)[None]
        self._decode(self._file, self._images[samples], self._lengths[samples], crops, images, failed, scratch)
        if failed.any():
            name = self._store.name(int(samples[failed.argmax()]))
            raise DataError(
                f"{self._store.path}: {name} cannot be decoded: its JPEG data is damaged. Restore or prepare it again."
            )


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
