"""Build the shards of a corpus in worker processes, in any order, with progress and bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from language_model.text.shards import Part, PartSettings, start_making
from language_model.text.store import VOCABULARY
from timedrun.storage.worker_pool import TaskProgress, results


def make_parts(
    parts: Iterator[tuple[Part, str]],
    folder: Path,
    settings: PartSettings,
    *,
    workers: int,
    report: Callable[[str], None],
    done: Callable[[], float],
) -> None:
    """Build every shard into its file in `folder`, which holds the vocabulary; one worker is this process itself.

    `done` returns the share of the text read up to the last shard from `parts`.

    Raises:
        TimedrunError: a worker process was killed.
    """
    progress = TaskProgress(report, unit="WordPieces", tasks="shards")
    tasks = ((part, digest, done()) for part, digest in parts)
    with _one_thread():
        for (_, _, share), (wordpieces, made) in results(
            tasks,
            start_making,
            (folder, settings, folder / VOCABULARY),
            workers=workers,
            name=_name,
            remedy=f"no store was written, finished shards are kept in {folder}; run the same command again, with fewer"
            " workers",
        ):
            progress.add(wordpieces, made, share)
    progress.line()


def _name(task: tuple[Part, str, float]) -> str:
    """Return the documents of a shard, for messages."""
    part = task[0]
    names = [document.name for document in part.documents]
    return f"shard {part.number} of {part.split} ({names[0]} to {names[-1]})"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep `tokenizers` from using every core."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
