"""Write a ragged store from finished shards, one at a time; the manifest is written last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from language_model.text.shards import PartContent
from language_model.text.store import COLUMNS, CONTENT, MANIFEST, Manifest, Split, SplitFacts
from timedrun.storage.atomic_file import FileWriter, StoredFile, write_file


def write_split(
    folder: Path, split: Split, parts: Iterable[PartContent], count: int, chosen: NDArray[np.int64] | None = None
) -> tuple[dict[str, StoredFile], SplitFacts]:
    """Write the files of one split from its shards of `count` sequences, or only the increasing `chosen` ones.

    Returns their manifest entries. Only one shard is in memory at a time.
    """
    wanted = np.arange(count, dtype=np.int64) if chosen is None else chosen
    writers = {name: FileWriter(folder / split / name) for name in ("index.npy", *CONTENT[split])}
    header = {"descr": "<u2", "fortran_order": False, "shape": (len(wanted), COLUMNS[split])}
    np.lib.format.write_array_header_1_0(writers["index.npy"], header)
    passed = tokens = longest = masked = documents = skipped = 0
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
        skipped += len(part.skipped)
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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, after which the folder is a durable store."""
    write_file(folder / MANIFEST, manifest.to_json().encode())


def summary(manifest: Manifest, split: Split) -> Mapping[str, float | int]:
    """Return the counts of a split for a report."""
    facts = manifest.splits[split]
    room = facts.sequences * int(manifest.settings["max_length"])
    return {
        "sequences": facts.sequences,
        "tokens": facts.tokens,
        "mean_length": round(facts.tokens / max(1, facts.sequences), 2),
        "padding_share": round(1 - facts.tokens / max(1, room), 4),
        "longest": facts.longest,
        "masked_tokens": facts.masked,
        "documents": facts.documents,
        "skipped_documents": facts.skipped_documents,
    }


def _rows(part: PartContent, rows: NDArray[np.int64]) -> PartContent:
    """Select sequences of a shard."""
    if len(rows) == len(part.index):
        return part
    kept = np.zeros(len(part.index), dtype=bool)
    kept[rows] = True
    of_masked = np.repeat(kept, part.index[:, 2]) if part.index.shape[1] > 2 else np.zeros(0, dtype=bool)
    return PartContent(
        part.index[kept],
        part.tokens[np.repeat(kept, part.index[:, 0])],
        part.masked[of_masked],
        part.labels[of_masked],
        part.wordpieces,
        part.documents,
        part.skipped,
    )
