"""WordPiece encoding equal to `tokenizers`, which encodes each distinct word of plain text only once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from language_model.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDS_KEPT = 200_000
"""Maximum distinct words cached, about 40 MB."""
_BATCH = 1024
# Characters that BERT's normalizer changes only in case, and that its splitter either joins (letters and digits) or
# separates (everything else). Any other character sends its sentence through `tokenizers`.
_PLAIN = re.compile(r"[ -~–—‘’“”…]*")
_PIECE = re.compile(r"[a-z0-9]+|[^a-z0-9 ]")


class Encoder:
    """Encoder of one vocabulary, as of bert-large-uncased, without [CLS] and [SEP]."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer()
        self._words = _Words(self._tokenizer)

    def encode(self, sentences: Sequence[str]) -> list[array[int]]:
        """Return the ids of every sentence, type code I."""
        encoded: list[array[int] | None] = []
        others: list[int] = []
        look_up, join, plain, pieces = self._words.__getitem__, chain.from_iterable, _PLAIN.fullmatch, _PIECE.findall
        for number, sentence in enumerate(sentences):
            if (sentence.isascii() and sentence.isprintable()) or plain(sentence):
                encoded.append(array("I", join(map(look_up, pieces(sentence.lower())))))
            else:
                encoded.append(None)
                others.append(number)
        if len(self._words) > WORDS_KEPT:
            self._words.clear()
        for start in range(0, len(others), _BATCH):
            places = others[start : start + _BATCH]
            texts = [sentences[place] for place in places]
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for place, encoding in zip(places, encodings, strict=True):
                encoded[place] = array("I", encoding.ids)
        return [ids for ids in encoded if ids is not None]


class _Words(dict[str, tuple[int, ...]]):
    """WordPiece ids of words, computed by the tokenizer at the first lookup."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)
        self[word] = ids
        return ids
