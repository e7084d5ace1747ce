"""Room on a disk that a growing file can count on, whatever else fills the disk meanwhile."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

FALLOC_FL_KEEP_SIZE: Final = 0x01  # linux/falloc.h: blocks beyond the file's end are its own, its size stays
UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})


def reserve(descriptor: int, offset: int, count: int) -> bool:
    """Reserve `count` bytes from `offset` on (man 2 fallocate); False where the file system or the C library cannot.

    Raises:
        OSError: the disk or the user's quota has no such room (ENOSPC, EDQUOT), or the file is not writable.
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is None:
        return False
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    while function(descriptor, FALLOC_FL_KEEP_SIZE, offset, count):
        number = ctypes.get_errno()
        if number in UNSUPPORTED:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def release(descriptor: int) -> None:
    """Give back what was reserved beyond the file's end. A file system that keeps it is not an error."""
    try:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size)
    except OSError:
        return
