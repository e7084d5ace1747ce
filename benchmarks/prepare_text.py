"""Cost of preparing text: the whole pipeline against `tokenizers` alone, interleaved, with spread.

Both get the same text and as many processes or threads as each other; `tokenizers` gets the sentences ready in memory.
With one worker CPU seconds are measured, so that other work on the machine does not matter; with more, wall seconds.

Usage: python benchmarks/prepare_text.py --vocabulary vocab.txt TEXT... [--rounds 5] [--workers 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from language_model.prepare import prepare_text
from language_model.text.corpus import Corpus
from language_model.text.settings import TextSettings
from language_model.text.vocabulary import read_vocabulary

Clock = Callable[[], float]

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def tokenizer_seconds(tokenizer: Tokenizer, sentences: list[str], batch: int, clock: Clock) -> float:
    """Seconds of encoding `sentences`, ids taken, nothing else done with them."""
    began = clock()
    for start in range(0, len(sentences), batch):
        for encoding in tokenizer.encode_batch_fast(sentences[start : start + batch], add_special_tokens=False):
            _ = encoding.ids
    return clock() - began


def pipeline_seconds(text: list[Path], vocabulary: Path, workers: int, clock: Clock) -> float:
    """Seconds of the whole preparation, processes started and store written."""
    with TemporaryDirectory() as folder:
        began = clock()
        prepare_text(
            text,
            [],
            Path(folder) / "store",
            vocabulary=vocabulary,
            workers=workers,
            settings=TextSettings(held_out=0.02, part_characters=1 << 21),
        )
        return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="+", type=Path)
    parser.add_argument("--vocabulary", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(arguments.workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = read_vocabulary(arguments.vocabulary).tokenizer()
    sentences = [line for document in Corpus(arguments.text).documents() for line in document.sentences()]
    clock: Clock = time.process_time if arguments.workers == 1 else time.perf_counter
    ways = {
        "encode_batch_fast": lambda: tokenizer_seconds(tokenizer, sentences, arguments.batch, clock),
        "pipeline": lambda: pipeline_seconds(arguments.text, arguments.vocabulary, arguments.workers, clock),
    }
    rows = []
    for number in range(arguments.rounds):
        seconds = {name: ways[name]() for name in (ways if number % 2 == 0 else reversed(ways))}
        rows.append(seconds)
        print("  ".join(f"{name} {value:.2f} s" for name, value in seconds.items()), flush=True)
    ratios = sorted(row["encode_batch_fast"] / row["pipeline"] for row in rows)
    result = {
        "command": ["python", *(Path(word).name if "/" in word else word for word in sys.argv)],
        "versions": {"python": platform.python_version(), "tokenizers": importlib.metadata.version("tokenizers")},
        "rounds": rows,
        "workers": arguments.workers,
        "sentences": len(sentences),
        "pipeline_speed_over_encode_batch_fast": ratios,
    }
    print(
        f"{len(sentences):,} sentences, {arguments.workers} workers: pipeline at {statistics.median(ratios):.1%} of"
        f" encode_batch_fast alone ({ratios[0]:.1%} to {ratios[-1]:.1%})"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
