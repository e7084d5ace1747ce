"""Files of a prepared store that every kind of data has: its manifest, and the records of shards from which an
interrupted build goes on."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import cattrs
import numpy as np
from numpy.typing import NDArray

from judging.ground.atomic_file import StoredFile, check_content, failures, is_inside, write_file
from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind

WORK = "preparation"
"""Folder within an unfinished store, for what a rerun may use; it is removed when the manifest is written."""


class Manifest(Protocol):
    """Head of a store, written last: a folder without it is no store."""

    @property
    def files(self) -> Mapping[str, StoredFile]:
        """Files by path within the store, with forward slashes."""


Kind = TypeVar("Kind", bound=Manifest)


def read_manifest(path: Path, kind: type[Kind], version: int, *, absent: str) -> Kind:
    """Read the manifest at `path`, a JSON object with the fields of `kind`, its `version` among them.

    Raises:
        DataError: there is none, which is `absent`; or it is damaged, of another version, or lists files elsewhere.
    """
    require_own_kind(path)
    try:
        values = json.loads(path.read_bytes())
        if (written := values.get("version")) != version:
            raise DataError(
                f"{path}: version {written} is not supported, only {version}; nothing was read; run prepare again."
            )
        manifest = cattrs.Converter(forbid_extra_keys=True).structure(values, kind)
        if outside := [name for name in manifest.files if not is_inside(name)]:
            raise DataError(f"{path}: lists {outside[0]!r}, a path outside the store; nothing was read.")
        return manifest
    except FileNotFoundError:
        raise DataError(f"{path.parent}: {absent}") from None
    except (OSError, ValueError, AttributeError, RecursionError, cattrs.BaseValidationError) as error:
        raise DataError(
            f"{path}: damaged or edited ({type(error).__name__}); nothing was read; run prepare again."
        ) from None


def verify(folder: Path, manifest: Kind) -> Kind:
    """Return `manifest` if every file of the store in `folder` has its SHA-256.

    Raises:
        DataError: files are missing or differ; all of them are named.
    """
    if damaged := failures(check_content, folder, manifest.files):
        raise DataError("\n".join(damaged))
    return manifest


def save_record(path: Path, key: str, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the record of a finished shard. `key` stands for everything that the shard was made from."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps({"key": key, **facts}).encode(), dtype=np.uint8)
    np.savez(buffer, facts=text, **arrays)  # type: ignore[arg-type]
    write_file(path, buffer.getvalue())


def load_record(path: Path, key: str) -> dict[str, Any] | None:
    """Return facts and arrays of the shard made from `key`, or None if the record is absent, damaged or of another."""
    try:
        with np.load(path, allow_pickle=False) as arrays:  # reading a member checks its CRC-32
            facts: dict[str, Any] = json.loads(arrays["facts"].tobytes())
            if facts.pop("key") != key:
                return None
            return facts | {name: arrays[name] for name in arrays.files if name != "facts"}
    except (OSError, ValueError, KeyError, EOFError, AttributeError, TypeError, RecursionError, zipfile.BadZipFile):
        return None
