"""Files as read-only arrays that hold no descriptor: Python's own maps keep one each, and a process may have few."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from timedrun.errors import DataError

_FAILED = ctypes.c_void_p(-1).value


def mapped(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, read when they are touched; unmapped with the last view of them.

    Raises:
        DataError: it cannot be opened or mapped.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(handle).st_size
            if size == 0:  # cannot be mapped
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
    # not at exit: threads may still read, and the system unmaps it anyway
    weakref.finalize(buffer, _libc().munmap, address, size).atexit = False
    return np.frombuffer(memoryview(buffer).toreadonly(), dtype=np.uint8)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
