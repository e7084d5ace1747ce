"""Text of an examination: files of tokens (.npy, or .bin as the GPT speed runs write), rows, renumbered copies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from judging.ground import token_shard
from judging.ground.errors import DataError, UsageError
from referee.sandbox import MOST_SHARDS, Shard

Tokens = NDArray[Any]
CHUNK: Final = 1 << 22
MOST_IDS: Final = 1 << 22
"""Token ids of a vocabulary: an answer has a number for each of them, at eight positions in each of four rows."""
NUMBERS_PER_ROW: Final = 1 << 21
"""Largest number of logits of a row."""


def shard(path: Path) -> Shard:
    """Return the place of the tokens in a file. Raises DataError if the file is of neither kind, empty or truncated."""
    if not path.is_file():  # reading a pipe would wait for its writer
        raise DataError(f"{path} is not a plain file; no token was read")
    if path.suffix == ".npy":
        try:
            row: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="r")
        except OSError:
            raise
        except Exception as error:  # of any type, by what is wrong with the header
            raise DataError(f"{path} is no whole .npy file of numbers: {error}; no token was read") from error
        if row.ndim != 1 or row.dtype.kind not in "iu" or not row.size:
            raise DataError(f"{path}: {row.dtype} of shape {row.shape}, not a row of integers; no token was read")
        return Shard(path, row.offset, row.size, row.dtype.str)
    if path.suffix != ".bin":
        raise DataError(f"{path}: neither a .npy nor a .bin file; no token was read")
    header = token_shard.read_shard(path)
    if not header.tokens:
        raise DataError(f"{path}: it has no tokens; name a file that has some")
    return Shard(path, token_shard.HEADER_BYTES, header.tokens, token_shard.TOKEN_TYPE.str)


def shards(path: Path, part: str) -> list[Shard]:
    """Return the shards of a file, or of the .npy and .bin files of a folder, by name.

    Args:
        part: "train" or "val"; of a folder that has files with `_train_` or `_val_` in their names, as the GPT speed
            runs name them, only those of this part are taken.

    Raises:
        DataError: a folder has none.
    """
    if not path.is_dir():
        return [shard(path)]
    files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".bin"))
    if any("_train_" in file.name or "_val_" in file.name for file in files):
        files = [file for file in files if f"_{part}_" in file.name]
    if not files:
        raise DataError(f"{path}: no .npy or .bin file in this folder for {part}; name a file of tokens")
    return [shard(file) for file in files]


def read(place: Shard) -> Tokens:
    """Return the tokens of a shard, mapped into memory."""
    return np.memmap(place.path, dtype=np.dtype(place.dtype), mode="r", offset=place.offset, shape=(place.count,))


def renumbered(sources: Sequence[Shard], numbers: NDArray[np.int64], folder: Path, name: str) -> list[Shard]:
    """Write copies of shards whose token t is `numbers[t]`, with the header of the speed runs and of no date, so that
    copies with other numbers are equal in form. Raises DataError if a token is not in the vocabulary, or an id that a
    token may get is too large for a .bin file; of a .npy file, the copy has a wider type then."""
    copies = []
    for index, source in enumerate(sources):
        copy = folder / f"{name}{index}"
        tokens = read(source)
        kind = tokens.dtype
        if len(numbers) - 1 > np.iinfo(kind).max:
            if source.path.suffix == ".bin":
                text = f"{kind} cannot hold the ids of a vocabulary of {len(numbers):,}; write the tokens as .npy"
                raise DataError(f"{source.path}: {text}. Nothing was run.")
            kind = np.min_scalar_type(len(numbers) - 1)
        header = np.zeros(token_shard.HEADER_BYTES // 4, token_shard.HEADER_TYPE)
        header[:3] = token_shard.MAGIC, token_shard.VERSION, source.count
        with copy.open("wb") as file:
            file.write(header.tobytes())
            for start in range(0, source.count, CHUNK):
                chunk = tokens[start : start + CHUNK]
                if int(chunk.max()) >= len(numbers) or int(chunk.min()) < 0:
                    raise DataError(f"{source.path}: token {chunk.max()} where the vocabulary is {len(numbers)}")
                file.write(numbers[chunk].astype(kind).tobytes())
        copy.chmod(0o444)  # sessions have other users
        os.utime(copy, (0, 0))
        copies.append(Shard(copy, token_shard.HEADER_BYTES, source.count, kind.str))
    return copies


@dataclass(frozen=True)
class Windows:
    """Rows of validation tokens and the positions that are asked about.

    Attributes:
        rows: (windows, context + 1) int64; a row's last token is never sent.
        positions: (windows, asked) int64, ascending; a position's target is the token after it.
        futures: (windows, context) int64, other text, of which no row is made.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    futures: NDArray[np.int64]

    @property
    def inputs(self) -> NDArray[np.int64]:
        """Return what is sent, (windows, context)."""
        return self.rows[:, :-1]

    @property
    def targets(self) -> NDArray[np.int64]:
        """Return the token after each position, (windows, asked)."""
        return np.take_along_axis(self.rows, self.positions + 1, axis=1)

    def renumbered(self, numbers: NDArray[np.int64]) -> Windows:
        """Return the same rows, whose token t is `numbers[t]`."""
        return Windows(numbers[self.rows], self.positions, numbers[self.futures])

    def first(self, count: int) -> Windows:
        """Return the first rows."""
        return Windows(self.rows[:count], self.positions[:count], self.futures[:count])

    def changed(self, cuts: NDArray[np.int64], number: int) -> tuple[NDArray[np.int64], slice]:
        """Return the inputs with other text after a position of each row, of which `cuts` has the index, and the order
        of the rows, which is the same. Each `number` has another text."""
        ends = np.take_along_axis(self.positions, cuts[:, None], axis=1)
        others = np.roll(self.futures, number, axis=0)
        return np.where(np.arange(others.shape[1]) > ends, others, self.inputs), slice(None)


def windows(
    sources: Sequence[Shard], *, context: int, vocabulary: int, count: int, numbers_per_row: int, seed: int
) -> Windows:
    """Draw rows that do not overlap, in random order, and positions in each, all where `numbers_per_row` allows it.

    Args:
        count: largest number of rows; at most half of those that the data have, since the others are `futures`.
        numbers_per_row: largest number of logits of a row.

    Raises:
        DataError: there are fewer than 16 rows, or a token is not in the vocabulary.
    """
    draw = np.random.default_rng(seed)
    for source in sources:  # in full: later draws have other rows
        if (tokens := read(source)).max() >= vocabulary or tokens.min() < 0:
            raise DataError(f"{source.path}: token {tokens.max()} where the vocabulary is {vocabulary}")
    starts = [(source, start) for source in sources for start in range(0, source.count - context, context)]
    if len(starts) < 16:
        raise DataError(f"the validation data have {len(starts)} rows of {context} tokens; at least 16 are needed")
    count = min(count, len(starts) // 2)
    chosen = [starts[number] for number in draw.permutation(len(starts))[: 2 * count]]
    rows = np.stack([read(source)[start : start + context + 1].astype(np.int64) for source, start in chosen])
    asked = min(context, max(8, numbers_per_row // vocabulary))
    positions = np.sort(np.stack([draw.permutation(context)[:asked] for _ in range(count)]), axis=1)
    return Windows(rows[:count], positions, rows[count:, :-1])


class Text:
    """Training and validation tokens of an examination, as they are and renumbered.

    Args:
        count: largest number of rows of a question set; fixed: token ids that keep their number.

    Raises:
        DataError: a file is not of tokens, or too short.
        UsageError: too many ids, or a fixed one that is not in the vocabulary.
    """

    measure, scale = "loss", "nats"
    unit, changed = "tokens", "renumbered tokens"

    def __init__(
        self,
        train: Path,
        validation: Path,
        vocabulary: int,
        context: int,
        count: int,
        draw: np.random.Generator,
        fixed: Sequence[int] = (),
    ) -> None:
        if vocabulary > MOST_IDS:
            text = f"at most {MOST_IDS:,} can be asked about, since an answer has a number for each id"
            raise UsageError(f"--vocabulary {vocabulary:,}: {text}. Nothing was run.")
        if beyond := [str(token) for token in fixed if token >= vocabulary]:
            text = f"there are {vocabulary} ids, 0 to {vocabulary - 1}. Nothing was run."
            raise UsageError(f"--fixed {' and '.join(beyond)}: {text}")
        free = np.setdiff1d(np.arange(vocabulary), fixed)
        self.numbers = np.arange(vocabulary)
        self.numbers[free] = draw.permutation(free)
        self.choices, self.units, self._count = vocabulary, context, count
        self.task, self.shapes = {"vocabulary": vocabulary, "context": context}, ((context,), (context, vocabulary))
        self.train, self.validation = shards(train, "train"), shards(validation, "val")
        if len(self.train) > MOST_SHARDS:
            text = f"{len(self.train):,} files of training tokens, of {MOST_SHARDS} that a session can be given"
            raise UsageError(f"{train}: {text}; name a folder with fewer, or join some. Nothing was run.")
        self.questions(draw)  # raises before a copy is made

    def copies(self, folder: Path, name: str, *, planted: bool) -> list[Shard]:
        """Write the training tokens, renumbered if `planted`."""
        return renumbered(self.train, self.numbers if planted else np.arange(self.choices), folder, name)

    def questions(self, draw: np.random.Generator) -> dict[str, Windows]:
        """Draw a question set; return it as it is and renumbered."""
        real = windows(
            self.validation,
            context=self.units,
            vocabulary=self.choices,
            count=self._count,
            numbers_per_row=NUMBERS_PER_ROW,
            seed=int(draw.integers(1 << 31)),
        )
        return {"real": real, "planted": real.renumbered(self.numbers)}
