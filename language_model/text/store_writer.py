"""Write a ragged store from finished shards, one at a time."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from judging.ground.atomic_file import FileWriter, StoredFile
from language_model.text.shards import PartContent
from language_model.text.store import COLUMNS, CONTENT, Split, SplitFacts


def write_split(
    folder: Path, split: Split, parts: Iterable[PartContent], wanted: NDArray[np.int64], skipped: int = 0
) -> tuple[dict[str, StoredFile], SplitFacts]:
    """Write the `wanted` sequences of one split, increasing positions over all its shards.

    Returns the manifest's entries; `skipped` documents were left out. Only one shard is in memory at a time.
    """
    writers = {name: FileWriter(folder / split / name) for name in ("index.npy", *CONTENT[split])}
    header = {"descr": "<u2", "fortran_order": False, "shape": (len(wanted), COLUMNS[split])}
    np.lib.format.write_array_header_1_0(writers["index.npy"], header)
    passed = tokens = longest = masked = documents = 0
    for part in parts:
        begin, end = np.searchsorted(wanted, (passed, passed + len(part.index)))
        kept = _rows(part, wanted[begin:end] - passed)
        passed += len(part.index)
        writers["index.npy"].write(kept.index.tobytes())
        writers["tokens.bin"].write(kept.tokens.tobytes())
        if split == "evaluation":
            writers["masked.bin"].write(kept.masked.tobytes())
            writers["labels.bin"].write(kept.labels.tobytes())
        tokens += len(kept.tokens)
        masked += len(kept.masked)
        documents += part.documents
        longest = max(longest, int(kept.index[:, 0].max(initial=0)))
    facts = SplitFacts(
        sequences=len(wanted),
        tokens=tokens,
        longest=longest,
        masked=masked,
        documents=documents,
        skipped_documents=skipped,
    )
    return {f"{split}/{name}": writer.complete() for name, writer in writers.items()}, facts


def _rows(part: PartContent, rows: NDArray[np.int64]) -> PartContent:
    """Select sequences of a shard."""
    if len(rows) == len(part.index):
        return part
    kept = np.zeros(len(part.index), dtype=bool)
    kept[rows] = True
    of_masked = np.repeat(kept, part.index[:, 2]) if part.index.shape[1] > 2 else np.zeros(0, dtype=bool)
    return replace(
        part,
        index=part.index[kept],
        tokens=part.tokens[np.repeat(kept, part.index[:, 0])],
        masked=part.masked[of_masked],
        labels=part.labels[of_masked],
    )
