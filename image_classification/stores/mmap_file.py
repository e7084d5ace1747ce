"""Files as read-only arrays. They hold no file descriptor; `mmap.mmap` keeps one open per map."""

import ctypes
import mmap
import os
import weakref
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from judging.ground.errors import DataError

_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a file as a memory map, unmapped when its last view is released. Raises DataError if the file
    cannot be opened or mapped."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(handle).st_size
            if size == 0:  # mmap refuses an empty file
                return np.empty(0, dtype=np.uint8)
            address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
            if address == _FAILED:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(handle)
    except OSError as error:
        raise DataError(f"{path}: cannot be mapped into memory ({error.strerror}).") from None
    buffer = (ctypes.c_uint8 * size).from_address(address)
    # Not at exit: threads may still read, and the system unmaps it anyway.
    weakref.finalize(buffer, _libc().munmap, address, size).atexit = False
    return np.frombuffer(memoryview(buffer).toreadonly(), dtype=np.uint8)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
