"""Token shards as llm.c and modded-nanogpt write them, FineWeb's among them: `.bin` files of GPT-2 tokens.

A shard is a header of 256 int32 (magic, version, number of tokens, then zeros) and the tokens, uint16, all little
endian. Source: llm.c, dev/data/data_common.py. timedrun writes the size of the vocabulary as the header's fourth number
where it is not GPT-2's; there others have 0.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from judging.ground.atomic_file import write_file
from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind

MAGIC: Final = 20240520
VERSION: Final = 1
LLAMA3_MAGIC: Final = 20240801
HEADER_TYPE: Final = np.dtype("<i4")
HEADER_BYTES: Final = 256 * HEADER_TYPE.itemsize
TOKEN_TYPE: Final = np.dtype("<u2")
GPT2_VOCABULARY: Final = 50_257


@dataclass(frozen=True)
class Shard:
    """One file, by its header."""

    path: Path
    tokens: int
    vocabulary: int

    def open(self) -> NDArray[np.uint16]:
        """Return the token ids, (tokens,) uint16, mapped into memory."""
        return np.memmap(self.path, dtype=TOKEN_TYPE, mode="r", offset=HEADER_BYTES, shape=(self.tokens,))


def read_shard(path: Path) -> Shard:
    """Read the header of a shard and compare it with the file's size; no token is read. Raises DataError if the file
    cannot be read or is truncated or too long, the header is of another format or version, or the tokens are not
    uint16."""
    require_own_kind(path)
    try:
        with path.open("rb") as file:
            content = file.read(HEADER_BYTES)
        size = path.stat().st_size - HEADER_BYTES
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) < HEADER_BYTES:
        raise DataError(f"{path}: truncated within its header of {HEADER_BYTES:,} bytes; copy it again.")
    magic, version, tokens, vocabulary, *_ = (int(number) for number in np.frombuffer(content, HEADER_TYPE))
    if magic == LLAMA3_MAGIC:
        raise DataError(f"{path} has Llama 3's tokens of 4 bytes; a run of GPT reads GPT-2's, of 2 bytes (uint16).")
    if (magic, version) != (MAGIC, VERSION):
        raise DataError(
            f"{path}: its header begins with {magic} and version {version} instead of {MAGIC} and {VERSION}, so it is"
            " not a shard of GPT-2 tokens; download or prepare it again."
        )
    if tokens < 0 or vocabulary < 0 or vocabulary > np.iinfo(TOKEN_TYPE).max + 1:
        raise DataError(f"{path}: its header names {tokens} tokens and a vocabulary of {vocabulary}; it is damaged.")
    if tokens and size == 4 * tokens:
        how = "write them again as uint16, little endian"
        raise DataError(f"{path}: {tokens:,} tokens take 4 bytes each instead of 2; {how}.")
    if size != TOKEN_TYPE.itemsize * tokens:
        fault = "truncated" if size < TOKEN_TYPE.itemsize * tokens else "too long"
        raise DataError(
            f"{path}: {fault}, {size:,} bytes of tokens where its header names {tokens:,} tokens of"
            f" {TOKEN_TYPE.itemsize} bytes; copy it again."
        )
    return Shard(path, tokens, vocabulary or GPT2_VOCABULARY)


def write_shard(path: Path, tokens: NDArray[np.uint16], vocabulary: int = GPT2_VOCABULARY) -> None:
    """Write a shard, on disk when this returns."""
    header = np.zeros(256, dtype=HEADER_TYPE)
    header[:4] = MAGIC, VERSION, len(tokens), 0 if vocabulary == GPT2_VOCABULARY else vocabulary
    write_file(path, header.tobytes() + tokens.astype(TOKEN_TYPE).tobytes())
