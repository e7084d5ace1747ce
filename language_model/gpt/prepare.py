"""Preparation of text for GPT: a store of characters, or shards of byte pairs."""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from judging.ground.atomic_file import FileWriter, write_file
from judging.ground.errors import DataError, UsageError
from judging.ground.token_shard import write_shard
from language_model.gpt.configs import GptRunConfig
from language_model.gpt.datasets import data_notes, facts
from language_model.gpt.encoding import BYTES, SPLITS, TOKEN_TYPE, BytePairs, Characters, Split, Tokens, read_text
from language_model.gpt.token_store import FILES, MANIFEST, SHARD_TOKENS, Manifest, Source, open_store
from language_model.text import topics_store
from language_model.text.corpus import Corpora, Document

VALIDATION_FRACTION = 0.1
DOCUMENTS = 256
"""Documents that are encoded together."""


def prepare(
    config: GptRunConfig,
    folder: Path | None,
    *,
    decode: bool,
    workers: int,
    text: Sequence[Path] = (),
    evaluation_text: Sequence[Path] = (),
    vocabulary: Path | None = None,
) -> dict[str, Any]:
    """Build a token store in `folder` from `text`, the last tenth of which is for validation; without text, check the
    existing store, with `decode` every byte of it, or, for the dataset topics, build it from Python's own help topics.

    Tokens are characters. One process does the work, whatever `workers` is. With `data.format` shards the documents of
    `text`, and of `evaluation_text` for validation, become shards with the first `model.vocabulary` of GPT-2's byte
    pairs; `vocabulary` is their encoder.json, with vocab.bpe beside it. Raises DataError if text or store cannot be
    used; UsageError for no folder, options without effect, and an encoding that shards cannot have.
    """
    # What cannot be prepared is refused before a file is read.
    sharded = config.data.format == "shards"
    if folder is None:
        raise UsageError(f"{config.name} needs --data-folder for its token store; nothing was prepared.")
    if evaluation_text and not (sharded and text):
        raise UsageError("--evaluation-text needs --text and --data.format shards; nothing was prepared.")
    # Shards or a token store of the given text, the help topics, or a check of what is there.
    if text and sharded:
        size = config.model.vocabulary
        if vocabulary is None or size <= BYTES:
            raise UsageError(
                "shards need GPT-2's encoder.json (--vocabulary, with vocab.bpe beside it) and a --model.vocabulary"
                f" above {BYTES}; nothing was prepared."
            )
        prepare_shards(text, evaluation_text, folder, name=config.dataset, encoder=vocabulary, vocabulary=size)
    elif vocabulary:
        raise UsageError("--vocabulary needs --text and --data.format shards; nothing was prepared.")
    elif text:
        prepare_tokens(text, folder)
    elif config.dataset == "topics" and not (folder / MANIFEST).exists():
        topics = "\n".join(sentence for sentences in topics_store.documents().values() for sentence in sentences)
        with tempfile.TemporaryDirectory(prefix="timedrun-") as temporary:
            path = Path(temporary) / "topics.txt"
            path.write_text(topics.encode("ascii", "ignore").decode(), encoding="utf-8", newline="")
            prepare_tokens([path], folder, alphabet="".join(map(chr, range(128))))  # of every Python the same
    elif decode:
        open_store(folder).verify()
    known = {"store": str(folder), **asdict(facts(folder, config.model.context, config.data))}
    return known | ({"notes": found} if (found := data_notes(config, folder, whole=True)) else {})


def prepare_tokens(paths: Sequence[Path], out: Path, *, alphabet: str = "") -> Manifest:
    """Build a token store in `out` from the concatenated texts in `paths`; the same input yields the same bytes.

    The first int(characters * (1 - VALIDATION_FRACTION)) characters are for training, the rest for validation, as
    nanoGPT splits tinyshakespeare. The characters of `alphabet` are tokens even if no text has them. Memory is bounded:
    files are read twice, in pieces. The manifest is written last, so no store is partial. Raises UsageError if `out`
    already has a store; DataError if a file is missing or not UTF-8, or if there is too little text.
    """
    if taken := [name for name in (MANIFEST, *FILES.values()) if (out / name).exists()]:
        raise UsageError(f"{out} already has {', '.join(taken)}; nothing was changed. Choose another or delete it.")
    # First reading: the alphabet and where the validation split begins need the whole text.
    scanned = [_scan(path) for path in paths]
    sources = tuple(source for source, _ in scanned)
    if len({source.sha256 for source in sources}) < len(sources):
        raise DataError(f"{', '.join(map(str, paths))}: two are equal, so one may be validated on; list each once.")
    coder = Characters("".join(set(alphabet).union(*(characters for _, characters in scanned))))
    total = sum(source.characters for source in sources)
    cut = int(total * (1 - Fraction(str(VALIDATION_FRACTION))))
    if total < cut + 2 or cut < 2:
        raise DataError(f"{total:,} characters leave fewer than 2 tokens for a split; use more text.")
    out.mkdir(parents=True, exist_ok=True)
    # Second reading: the pieces of all files follow one another, and one is divided where the split lies.
    writers = {split: FileWriter(out / name) for split, name in FILES.items()}
    at = 0
    for piece in chain.from_iterable(map(read_text, paths)):
        left = max(0, cut - at)
        for split, part in zip(SPLITS, (piece[:left], piece[left:]), strict=True):
            writers[split].write(coder.encode(part).astype(TOKEN_TYPE).tobytes())
        at += len(piece)
    # The manifest last: without it the folder is no store.
    manifest = Manifest(
        encoding="characters",
        vocabulary=coder.vocabulary,
        alphabet=coder.alphabet,
        validation_fraction=VALIDATION_FRACTION,
        sources=sources,
        files={FILES[split]: writer.complete() for split, writer in writers.items()},
    )
    write_file(out / MANIFEST, f"{json.dumps(asdict(manifest), indent=1)}\n".encode())
    return manifest


def _scan(path: Path) -> tuple[Source, set[str]]:
    """Size, digest and alphabet of a text file, read once."""
    characters, alphabet = 0, set[str]()
    for piece in read_text(path):
        characters += len(piece)
        alphabet.update(piece)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Source(name=path.name, bytes=path.stat().st_size, characters=characters, sha256=digest), alphabet


def prepare_shards(
    paths: Sequence[Path], evaluation_paths: Sequence[Path], out: Path, *, name: str, encoder: Path, vocabulary: int
) -> None:
    """Write the documents in `paths` and, for validation, `evaluation_paths` to shards `name`_train_*.bin and
    `name`_val_*.bin in `out`; the same input yields the same bytes. Files are as `Corpus` reads them.

    Without `evaluation_paths` a tenth of the documents is for validation, chosen by a hash of their text. GPT-2's
    <|endoftext|> stands before every document. A `vocabulary` below GPT-2's takes its first merges only. One full shard
    and the validation tokens are in memory. The validation shards are written last: no run opens a partial folder.
    Raises UsageError if `out` already has shards or a token store; DataError if text or encoding cannot be used, or if
    a split has fewer than 2 tokens.
    """
    # Nothing is overwritten, and nothing is encoded that the format could not hold.
    if taken := sorted(path.name for path in (*out.glob("*.bin"), *out.glob(MANIFEST))):
        raise UsageError(
            f"{out} already has {', '.join(taken[:3])}; nothing was changed. Choose another folder or delete it."
        )
    coder = BytePairs(encoder, vocabulary)
    if coder.end_of_text != coder.vocabulary - 1:
        raise DataError(
            f"{encoder}: <|endoftext|> is token {coder.end_of_text} of {coder.vocabulary:,}; shards of GPT-2 tokens"
            " need it as the last one."
        )
    corpora = Corpora.of_files(paths, evaluation_paths, VALIDATION_FRACTION)
    waiting: dict[Split, list[Tokens]] = {split: [] for split in SPLITS}
    shards = dict.fromkeys(SPLITS, 0)
    count = 0  # training tokens that wait

    def write(split: Split, tokens: Tokens) -> None:
        # As FineWeb's: fineweb_val_000000.bin, fineweb_train_000001.bin.
        number, word = (shards[split], "val") if split == "validation" else (shards[split] + 1, "train")
        write_shard(out / f"{name}_{word}_{number:06d}.bin", tokens, coder.vocabulary)
        shards[split] += 1

    # Training shards are written as they are full, since the text may be larger than memory.
    for split, tokens in encoded(coder, corpora.documents()):
        waiting[split].append(tokens)
        if split == "train":
            count += len(tokens)
            if count >= SHARD_TOKENS:
                joined = np.concatenate(waiting[split])
                write(split, joined[:SHARD_TOKENS])
                waiting[split], count = [joined[SHARD_TOKENS:]], count - SHARD_TOKENS
    # The validation split last: a folder without it is no store.
    rest = {split: np.concatenate([np.empty(0, np.uint16), *waiting[split]]) for split in SPLITS}
    if short := [split for split in SPLITS if not shards[split] and len(rest[split]) < 2]:
        raise DataError(f"the text leaves fewer than 2 tokens for {' and '.join(short)}; use more text.")
    for split in SPLITS:
        for begin in range(0, len(rest[split]), SHARD_TOKENS):
            write(split, rest[split][begin : begin + SHARD_TOKENS])


def encoded(coder: BytePairs, documents: Iterable[tuple[str, Document]]) -> Iterator[tuple[Split, Tokens]]:
    """Yield the tokens of each document after `end_of_text`, with its split."""
    left = iter(documents)
    while several := list(islice(left, DOCUMENTS)):
        texts = coder.encode_batch([document.text.strip("\n") for _, document in several])
        for (split, _), tokens in zip(several, texts, strict=True):
            yield (
                "train" if split == "train" else "validation",
                np.concatenate([np.array([coder.end_of_text], dtype=np.uint16), tokens]),
            )
