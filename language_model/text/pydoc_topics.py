"""Python's own help topics as a corpus of about 400 kB for a small BERT."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from language_model.text.corpus import Document
from language_model.text.sentences import split_sentences

EVALUATION_SHARE = 0.15
_RULE = re.compile(r"^([*=\-~^\"])\1{2,}$")


def documents() -> dict[str, list[str]]:
    """Return the sentences of every section of the help topics by "topic: heading"; code and tables keep their lines.

    Topics quote each other: a section with the text of an earlier one is dropped, so that no text is on both sides of
    the split. The text differs slightly between Python releases.
    """
    from pydoc_data.topics import topics

    found: dict[str, list[str]] = {}
    seen: set[bytes] = set()
    for topic, text in sorted(topics.items()):
        for number, (heading, lines) in enumerate(_sections(text)):
            sentences = _sentences(lines)
            fingerprint = Document("", " ".join(sentences), prose=False).fingerprint
            if sentences and fingerprint not in seen:
                seen.add(fingerprint)
                name = f"{topic}: {heading}"
                found[name if name not in found else f"{name} ({number})"] = [heading, *sentences]
    return found


def corpus() -> tuple[list[Document], list[Document]]:
    """Return the training and the evaluation documents: about one section in seven, by a hash of its text."""
    sides: tuple[list[Document], list[Document]] = ([], [])
    for name, sentences in documents().items():
        drawn = int.from_bytes(hashlib.blake2b("\n".join(sentences[1:]).encode(), digest_size=8).digest())
        held_out = drawn < EVALUATION_SHARE * 2.0**64
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
    found: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        kept = [line for line in paragraph.split("\n") if any(character.isalnum() for character in line)]
        if any(line.startswith("   ") for line in kept):
            found.extend(" ".join(line.split()) for line in kept)
        else:
            found.extend(split_sentences(" ".join(" ".join(kept).split())))
    return found
