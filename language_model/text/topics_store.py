"""Store of the embedded corpus in the user's cache folder, built once per text, length and format."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from language_model.text import pydoc_topics
from language_model.text.corpus_split import Corpora
from language_model.text.settings import TextSettings, evaluation_predictions
from language_model.text.shards import RULES
from language_model.text.store import MANIFEST, VERSION
from language_model.text.store_builder import build_store, to_standard_error
from language_model.text.vocabulary import train_vocabulary
from timedrun.errors import DataError

WORDPIECES = 2_000
"""Size of the vocabulary trained on the topics."""


def prepare_topics(out: Path, settings: TextSettings) -> dict[str, Any]:
    """Build a store in `out` from Python's help topics, for a small BERT; takes a few seconds on one core."""
    train, evaluation = pydoc_topics.corpus()
    corpora = Corpora(lambda: iter(train), lambda: iter(evaluation))
    return build_store(
        corpora,
        out,
        settings,
        vocabulary=lambda: train_vocabulary(corpora.training_sentences, WORDPIECES),
        workers=1,
        report=to_standard_error,
        done=lambda: 1.0,
    )


def prepared(longest: int) -> Path:
    """Return the store of Python's help topics in sequences of at most `longest` tokens, building it if absent.

    It is in `$XDG_CACHE_HOME/timedrun` or `~/.cache/timedrun`. Its name holds a digest of text and settings, so that
    another Python's text gets its own store.
    """
    settings = TextSettings(max_length=longest, max_predictions=evaluation_predictions(longest))
    text = "\0".join("\n".join((name, *sentences)) for name, sentences in pydoc_topics.documents().items())
    rules = f"{VERSION}:{RULES}:{pydoc_topics.EVALUATION_SHARE}:{WORDPIECES}:{settings}"
    key = hashlib.blake2b(f"{rules}:{text}".encode(), digest_size=8).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "timedrun" / f"topics_{longest}_{key}"
    if not (folder / MANIFEST).is_file():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Built under a temporary name and renamed: several processes may find it missing at the same time.
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".topics_"))
        try:
            prepare_topics(aside / "store", settings)
            try:
                (aside / "store").rename(folder)
            except OSError:
                if not (folder / MANIFEST).is_file():
                    raise
        finally:
            shutil.rmtree(aside)
    if folder.stat().st_uid not in (os.geteuid(), 0):
        raise DataError(f"{folder} is owned by another user; nothing was read; set XDG_CACHE_HOME to a folder you own.")
    return folder
