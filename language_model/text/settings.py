"""Settings that determine the bytes of a text store."""

from dataclasses import dataclass
from typing import Literal

from judging.ground.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Settings that determine the bytes of a store, besides the text and the vocabulary."""

    max_length: int = 512
    """Tokens of a sequence, including [CLS] and two [SEP]."""
    max_predictions: int = 76
    masked_fraction: float = 0.15
    short_sequence_probability: float = 0.1
    duplicates: Literal[1] = 1
    """Passes over the training text, in the digest of each store; masks are drawn anew in every epoch of a run."""
    evaluation_samples: int = 10_000
    held_out: float = 0.01
    """Share of documents held out for evaluation if no evaluation text is given."""
    seed: int = 12_345
    part_characters: int = 1 << 22

    def __post_init__(self) -> None:
        sound = {
            "max_length must be from 8 to 65,535": 8 <= self.max_length <= 65_535,
            "evaluation_samples must be at least 1": self.evaluation_samples >= 1,
        }
        if wrong := [rule for rule, holds in sound.items() if not holds]:
            raise UsageError(f"the text was not prepared: {'; '.join(wrong)}; got {self}")


def evaluation_predictions(longest: int) -> int:
    """Return the maximum predictions of an evaluation sequence: 15 % rounded down, like MLPerf's 76 of 512 tokens."""
    return max(1, int(longest * 0.15))
