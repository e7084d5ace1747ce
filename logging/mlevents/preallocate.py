"""Reserve disk space for a growing file, so that a disk that fills up later does not stop it."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from typing import Final

FALLOC_FL_KEEP_SIZE: Final = 0x01  # linux/falloc.h: reserve blocks beyond the end, keep the size
UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV})


def reserve(descriptor: int, offset: int, count: int) -> bool:
    """Reserve `count` bytes from `offset` on (man 2 fallocate); return False if the file system does not support it.

    Raises:
        OSError: not enough disk space or quota (ENOSPC, EDQUOT), or the file is not writable.
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
    """Release what was reserved beyond the end of the file. A file system that keeps it is not an error."""
    with suppress(OSError):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size)
