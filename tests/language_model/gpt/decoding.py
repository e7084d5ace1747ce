"""Decoding of token ids, independent of the product: by an alphabet, or by the tokenizers library."""

from collections.abc import Iterable
from pathlib import Path


def characters(alphabet: str, tokens: Iterable[int]) -> str:
    """Decode by the alphabet."""
    return "".join(alphabet[int(token)] for token in tokens)


def byte_pairs(files: tuple[Path, Path], tokens: Iterable[int]) -> str:
    """Decode by tokenizers, with encoder and merges from `files`."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(*map(str, files))
    text: str = tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False)
    return text
