"""Python's own help topics, a corpus of about 400 kB, as a store in the user's cache folder for a small BERT."""

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from judging.ground.errors import DataError
from language_model.text.corpus import Corpora, Document
from language_model.text.sentences import split_sentences
from language_model.text.settings import TextSettings, evaluation_predictions
from language_model.text.shards import RULES
from language_model.text.store import MANIFEST, VERSION
from language_model.text.store_builder import build_store

WORDPIECES = 2_000
"""Size of the vocabulary trained on the topics."""
EVALUATION_SHARE = 0.15
MIXED_SHORT_SEQUENCES = 0.8
"""Share of documents with a random target length that makes the mean of 128 tokens half of the longest: 0.53, with 16 %
of full length; 0.50 and 17 % in MLPerf BERT's training set (NVIDIA's packing statistics; the share by simulation)."""
_RULE = re.compile(r"^([*=\-~^\"])\1{2,}$")


def prepared(
    longest: int, short_sequences: float = TextSettings.short_sequence_probability, *, tuning: bool = False
) -> Path:
    """Return the store of Python's help topics in sequences of at most `longest` tokens, building it if absent.

    It is in `$XDG_CACHE_HOME/timedrun` or `~/.cache/timedrun`. Its name holds a digest of text and settings, so that
    another Python's text gets its own store.
    """
    settings = TextSettings(
        max_length=longest, max_predictions=evaluation_predictions(longest), short_sequence_probability=short_sequences
    )
    text = "\0".join("\n".join((name, *sentences)) for name, sentences in documents().items())
    rules = f"{VERSION}:{RULES}:{EVALUATION_SHARE}:{WORDPIECES}:{settings}" + ":tuning" * tuning
    key = hashlib.blake2b(f"{rules}:{text}".encode(), digest_size=8).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "timedrun" / f"topics_{longest}_{key}"
    if not (folder / MANIFEST).is_file():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Built under a temporary name and renamed: several processes may find it missing at the same time.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".topics_") as aside:
            train, evaluation = corpus(tuning=tuning)
            build_store(Corpora(train, evaluation), Path(aside, "store"), settings, vocabulary=WORDPIECES)
            try:
                Path(aside, "store").rename(folder)
            except OSError:
                if not (folder / MANIFEST).is_file():
                    raise
    if folder.stat().st_uid not in (os.geteuid(), 0):
        raise DataError(f"{folder} is owned by another user; nothing was read; set XDG_CACHE_HOME to a folder you own.")
    return folder


@functools.cache
def documents() -> dict[str, list[str]]:
    """Return the sentences of every section of the help topics by "topic: heading"; code and tables keep their lines.

    Topics quote each other: a section with the text of an earlier one is dropped, so that no text is on both sides of
    the split. The text differs slightly between Python releases.
    """
    from pydoc_data.topics import topics

    sections: dict[str, list[str]] = {}
    seen: set[bytes] = set()
    for topic, text in sorted(topics.items()):
        for number, (heading, lines) in enumerate(_sections(text)):
            sentences = _sentences(lines)
            fingerprint = Document("", " ".join(sentences), prose=False).fingerprint
            if sentences and fingerprint not in seen:
                seen.add(fingerprint)
                name = f"{topic}: {heading}"
                sections[name if name not in sections else f"{name} ({number})"] = [heading, *sentences]
    return sections


def corpus(*, tuning: bool = False) -> tuple[list[Document], list[Document]]:
    """Return the training and the evaluation documents: about one section in seven, by a hash of its text. `tuning`:
    those documents are left out, and as many further ones are for evaluation."""
    sides: tuple[list[Document], list[Document]] = ([], [])
    for name, sentences in documents().items():
        drawn = int.from_bytes(hashlib.blake2b("\n".join(sentences[1:]).encode(), digest_size=8).digest()) / 2.0**64
        if not tuning or drawn >= EVALUATION_SHARE:
            held_out = drawn < EVALUATION_SHARE * (1 + tuning)
            sides[held_out].append(Document(name, "\n".join(sentences), prose=False))
    return sides


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each underlined heading with the lines up to the next."""
    lines = text.split("\n")
    headings = [at - 1 for at, line in enumerate(lines) if at > 0 and _RULE.match(line) and lines[at - 1].strip()]
    if not headings or headings[0] > 0:
        yield lines[0].strip(), lines[1 : headings[0] if headings else len(lines)]
    for begin, end in zip(headings, [*headings[1:], len(lines)], strict=True):
        yield lines[begin].strip(), lines[begin + 2 : end]


def _sentences(lines: list[str]) -> list[str]:
    """Yield the sentences of paragraphs, and indented code line by line."""
    sentences: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        kept = [line for line in paragraph.split("\n") if any(character.isalnum() for character in line)]
        if any(line.startswith("   ") for line in kept):
            sentences.extend(" ".join(line.split()) for line in kept)
        else:
            sentences.extend(split_sentences(" ".join(" ".join(kept).split())))
    return sentences
