"""Checkpoint files that are whole or absent: written aside, digested, renamed into place, and checked before use."""

import hashlib
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from judging.ground.atomic_file import FileWriter
from judging.ground.errors import TimedrunError
from timedrun.methods.training.train_state import map_leaves

_MAGIC = b"timedrun-sha256:"
_FOOTER = len(_MAGIC) + 64  # follows the zip archive that torch.save wrote; torch.load reads past it
_CHUNK = 1 << 20
_PLAIN = (bool, int, float, str, bytes, type(None), torch.Size, torch.dtype, torch.device, Tensor, nn.Parameter)


class CheckpointError(TimedrunError, RuntimeError):
    """Checkpoint that could not be written, or must not be used."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path` atomically: an older file there stays until the new one is on disk.

    Values are tensors, numbers, strings, bytes, None, and dicts, lists and tuples of them, which is what `load` admits.
    Raises TypeError for a value of another kind, whose place is named, and CheckpointError if the file could not be
    written; no partial file is left.
    """
    map_leaves(state, _require_plain)
    try:
        with FileWriter(path) as file:
            torch.save(state, file)  # type: ignore[arg-type]  # requires IO[bytes], uses write and flush
            file.write(_MAGIC + file.sha256.encode())
    except Exception as error:
        reason = plain_reason(error) or error
        raise CheckpointError(f"checkpoint {path} was not written and no partial file is left: {reason}") from error


def load(path: Path) -> dict[str, Any]:
    """Load the state that `save` wrote to `path` to the CPU, after a check of its digest; no code in it is run. Raises
    FileNotFoundError if there is none, CheckpointError if it is truncated, was changed, or was not written by `save`.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # opening a pipe would block
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"checkpoint {path} is not a regular file; it was not used")
        size = status.st_size - _FOOTER
        digest = hashlib.sha256()
        for start in range(0, max(size, 0), _CHUNK):
            digest.update(file.read(min(_CHUNK, size - start)))
        footer = file.read()
        if size <= 0 or not footer.startswith(_MAGIC):
            raise CheckpointError(f"checkpoint {path} is truncated or was not written by timedrun; it was not used")
        if footer[len(_MAGIC) :] != digest.hexdigest().encode():
            raise CheckpointError(f"checkpoint {path} does not match its SHA-256 (damaged or changed); it was not used")
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > size:  # torch.save does not compress
                raise ValueError(f"it would unpack from {size:,} to {unpacked:,} bytes")
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            # Torch's message for other objects advises weights_only=False, which would run code of the file.
            unsafe = type(error).__name__ == "UnpicklingError"
            reason = "it holds more than tensors and plain values" if unsafe else str(error).partition("\n")[0]
            raise CheckpointError(f"checkpoint {path} matches its SHA-256 but was not used: {reason}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} holds a {type(state).__name__} instead of a state; it was not used")
    return state


def plain_reason(error: BaseException) -> str:
    """Return the operating system's reason for a failed write, without a path; "" if the error is another one.

    torch raises an error of its own after it, so causes are searched.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return ""


def _require_plain(place: str, value: object) -> None:
    if type(value) not in _PLAIN:
        raise TypeError(
            f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold safely; "
            "nothing was written; store tensors, numbers, strings, and dicts, lists or tuples of them"
        )
