"""BERT WordPiece vocabulary, read from vocab.txt or trained from text, and its tokenizer."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind
from language_model.dependencies import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_WORDS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
CHARACTERS = 1000
"""Maximum characters of a trained vocabulary, most frequent first; words with others become [UNK]."""
_BATCH = 1024
WORDS_KEPT = 200_000
"""Maximum distinct words cached, about 40 MB."""
# Characters that BERT's normalizer changes only in case, and that its splitter either joins (letters and digits) or
# separates (everything else). Any other character sends its sentence through `tokenizers`.
_PLAIN = re.compile(r"[ -~–—‘’“”…]*")
_PIECE = re.compile(r"[a-z0-9]+|[^a-z0-9 ]")


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Vocabulary ids of the special words."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True)
class Vocabulary:
    """WordPieces in the order of their ids."""

    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)

    @property
    def content(self) -> bytes:
        """Bytes of its vocab.txt."""
        return "".join(f"{word}\n" for word in self.words).encode()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @cached_property
    def special(self) -> SpecialIds:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK]."""
        return SpecialIds(**{name: self.words.index(word) for name, word in SPECIAL_WORDS.items()})

    def tokenizer(self) -> Tokenizer:
        """Build bert-large-uncased's tokenizer: lower case, no control characters or accents, CJK characters apart."""
        library = require("tokenizers", "text cannot be prepared")
        pieces = library.models.WordPiece(
            vocab={word: index for index, word in enumerate(self.words)},
            unk_token=SPECIAL_WORDS["unk"],
            max_input_chars_per_word=200,  # as in BERT's tokenization.py, with which MLPerf's set is made
        )
        return _uncased(pieces)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary, one WordPiece a line. Raises DataError if it is missing, not UTF-8, or has an empty line, a
    repeated word or no special words; the message names what is wrong."""
    require_own_kind(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); nothing was prepared; name a vocab.txt") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at byte {error.start}; nothing was prepared") from error
    words = [word.removesuffix("\r") for word in text.removesuffix("\n").split("\n")]
    missing = [word for word in SPECIAL_WORDS.values() if word not in set(words)]
    if missing:
        raise DataError(
            f"{path} lacks {', '.join(missing)}; nothing was prepared; BERT's vocabulary needs "
            f"{' '.join(SPECIAL_WORDS.values())}"
        )
    if words[0] != SPECIAL_WORDS["pad"]:
        raise DataError(f"{path} does not begin with {SPECIAL_WORDS['pad']}; nothing was prepared; padding is id 0")
    if "" in words:
        raise DataError(f"{path}, line {words.index('') + 1} is empty; nothing was prepared; every line is a WordPiece")
    twice = [word for word, count in Counter(words).items() if count > 1]
    if twice:
        raise DataError(f"{path} has {len(twice)} WordPieces twice, first {twice[0]!r}; nothing was prepared")
    return Vocabulary(tuple(words))


def train_vocabulary(sentences: Callable[[], Iterable[str]], size: int) -> Vocabulary:
    """Train a vocabulary of at most `size` WordPieces; `sentences` is called twice.

    The same text always yields the same vocabulary. The trainer alone numbers word parts in hash-table order and breaks
    ties by number, so all single characters are numbered beforehand. Raises DataError if `size` is too small for the
    characters of the text.
    """
    library = require("tokenizers", "text cannot be prepared")
    tokenizer = _uncased(library.models.WordPiece(unk_token=SPECIAL_WORDS["unk"]))
    counts: Counter[str] = Counter()
    for batch in _batches(sentences()):
        counts.update(library.normalizers.BertNormalizer().normalize_str(" ".join(batch)))
    ranked = sorted((-count, character) for character, count in counts.items() if not character.isspace())
    characters = sorted(character for _, character in ranked[:CHARACTERS])
    special = list(SPECIAL_WORDS.values())
    least = len(special) + 2 * len(characters)
    if not characters or size < least:
        raise DataError(
            f"a vocabulary of {size:,} WordPieces cannot be trained: {len(characters):,} characters need {least:,}; "
            "nothing was prepared; choose a larger vocabulary"
        )
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=special + characters + [f"##{character}" for character in characters],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_batches(sentences()), trainer)
    ids = tokenizer.get_vocab()
    return Vocabulary(tuple(sorted(ids, key=ids.__getitem__)))


def _uncased(pieces: object) -> Tokenizer:
    library = require("tokenizers", "text cannot be prepared")
    tokenizer: Tokenizer = library.Tokenizer(pieces)
    tokenizer.normalizer = library.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _batches(sentences: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(sentences)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


class Encoder:
    """Encoder of one vocabulary, as of bert-large-uncased, without [CLS] and [SEP]. Its ids are those of `tokenizers`,
    and each distinct word of plain text is encoded only once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer()
        self._word = lru_cache(WORDS_KEPT)(self._ids)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, sentence: str) -> array[int]:
        """Return the ids of a sentence, type code I."""
        if (sentence.isascii() and sentence.isprintable()) or _PLAIN.fullmatch(sentence):
            return array("I", chain.from_iterable(map(self._word, _PIECE.findall(sentence.lower()))))
        return array("I", self._ids(sentence))
