"""Encoding of text files as token ids: strict UTF-8 in pieces, as characters or by GPT-2's byte-level BPE."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from judging.ground.errors import DataError
from judging.ground.file_kind import require_own_kind
from judging.ground.token_shard import TOKEN_TYPE as TOKEN_TYPE
from language_model.dependencies import require
from language_model.text.corpus import decoded

Tokens = NDArray[np.uint16]
Split = Literal["train", "validation"]
SPLITS: tuple[Split, Split] = ("train", "validation")
BYTES = 256
MERGES = ("vocab.bpe", "merges.txt")
"""Names of the merges beside an encoder.json: OpenAI's and Hugging Face's."""
LARGEST_VOCABULARY = 1 << 16
END_OF_TEXT = "<|endoftext|>"


class Characters:
    """One token a character: its index in the sorted alphabet, as in nanoGPT's character-level data."""

    def __init__(self, alphabet: str) -> None:
        if len(alphabet) > LARGEST_VOCABULARY:
            raise DataError(
                f"the text has {len(alphabet):,} different characters; a token store is limited to"
                f" {LARGEST_VOCABULARY:,}. Encode it with gpt2."
            )
        self.alphabet = "".join(sorted(set(alphabet)))
        self.vocabulary = len(self.alphabet)
        self._codes = np.array([ord(character) for character in self.alphabet], dtype=np.uint32)

    def encode(self, text: str) -> Tokens:
        """Encode `text`. Raises DataError if a character is not in the alphabet."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        if missing := set(text) - set(self.alphabet):
            raise DataError(f"characters missing from the store's alphabet: {''.join(sorted(missing))!r}")
        return np.searchsorted(self._codes, codes).astype(np.uint16)


class BytePairs:
    """GPT-2's byte-level BPE (Radford et al. 2019) from its `encoder.json` and the merges beside it, by `tokenizers`.

    `<|endoftext|>` within text is encoded as ordinary text; `end_of_text` is the token of that name.

    With a `vocabulary` below the encoding's, which is 257 or more, text is merged by the first vocabulary - 257 pairs
    alone, the most frequent ones when the encoding was made. The tokens are the 256 bytes, the merged
    pairs, all with their own numbers, and `end_of_text`, the last one. 0: all of the encoding.
    """

    def __init__(self, encoder: Path, vocabulary: int = 0) -> None:
        tokenizers = require("tokenizers", "GPT-2's encoding cannot be used")
        beside = [encoder.with_name(name) for name in MERGES]
        merges = next((path for path in beside if path.exists()), beside[0])
        for path in (encoder, merges):
            if not path.is_file():
                raise DataError(f"{path} does not exist; GPT-2's encoding needs its encoder.json and vocab.bpe.")
            require_own_kind(path)
        try:
            ranks = json.loads(encoder.read_text(encoding="utf-8"))
            self.end_of_text = int(ranks[END_OF_TEXT])
            self._tokenizer = tokenizers.ByteLevelBPETokenizer(str(encoder), str(merges))
            if vocabulary and vocabulary < len(ranks):
                lines = merges.read_text(encoding="utf-8").splitlines()[1:]  # the first names the version
                pairs = [(first, second) for first, _, second in (line.partition(" ") for line in lines)]
                kept = pairs[: vocabulary - BYTES - 1]
                ranks = {token: rank for token, rank in ranks.items() if rank < vocabulary - 1}
                if any(first + second not in ranks for first, second in kept):
                    raise ValueError("the tokens are not numbered in the order of the merges")
                self.end_of_text = vocabulary - 1
                ranks[END_OF_TEXT] = self.end_of_text
                self._tokenizer = tokenizers.ByteLevelBPETokenizer(ranks, kept)
        except Exception as error:  # the library raises plain Exception for a file it cannot read
            raise DataError(f"{encoder} and {merges} are not a GPT-2 encoding: {error}") from error
        self.vocabulary: int = max(ranks.values()) + 1  # 50,257 for GPT-2
        if self.vocabulary > LARGEST_VOCABULARY:
            raise DataError(f"{encoder} has {self.vocabulary:,} tokens; the limit is {LARGEST_VOCABULARY:,}.")

    def encode_batch(self, texts: list[str]) -> list[Tokens]:
        """Return the token ids of each text, encoded by as many threads as there are cores."""
        return [np.array(encoded.ids, dtype=np.uint16) for encoded in self._tokenizer.encode_batch(texts)]


def read_text(path: Path) -> Iterator[str]:
    """Yield the text of `path` in pieces, as `decoded` does. Raises DataError if the file cannot be read."""
    require_own_kind(path)
    try:
        with path.open("rb") as file:
            yield from decoded(path, file)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; nothing was prepared.") from error
