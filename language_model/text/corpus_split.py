"""The training and evaluation documents of a store, given apart or held out by a hash; no text is in both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from language_model.text.corpus import Document
from language_model.text.store import Split
from timedrun.errors import DataError

Documents = Callable[[], Iterator[Document]]
"""Gives the documents of a corpus from the beginning, as often as it is called."""


@dataclass
class Corpora:
    """Documents to train on and, apart or held out of them, to evaluate on."""

    train: Documents
    evaluation: Documents | None = None
    held_out: float = 0.0
    """Without evaluation documents: the share of documents held out, by a hash of their text."""
    skipped: dict[Split, list[str]] = field(default_factory=lambda: {"train": [], "evaluation": []})
    """Names of the empty documents that the last pass met."""

    def documents(self) -> Iterator[tuple[Split, Document]]:
        """Every document with its split, empty ones left out.

        Raises:
            DataError: evaluation documents occur in the training text too; up to twenty are named.
        """
        self.skipped = {"train": [], "evaluation": []}
        known: dict[bytes, str] = {}
        if self.evaluation is not None:
            for document in self._filled(self.evaluation(), "evaluation"):
                known[document.fingerprint] = document.name
                yield "evaluation", document
        leaked: list[str] = []
        for document in self._filled(self.train(), "train"):
            if self.evaluation is None:
                drawn = int.from_bytes(document.fingerprint[:8])
                yield "evaluation" if drawn < self.held_out * 2.0**64 else "train", document
            elif (name := known.get(document.fingerprint)) is not None:
                leaked.append(f"  {name} (training: {document.name})")
            elif not leaked:
                yield "train", document
        if leaked:
            more = f"\n  and {len(leaked) - 20} more" if len(leaked) > 20 else ""
            shown = "\n".join(leaked[:20])
            raise DataError(
                f"{len(leaked)} documents of the evaluation text are in the training text too; no store was written; "
                f"take them out of one of them:\n{shown}{more}"
            )

    def training_sentences(self) -> Iterator[str]:
        """Sentences of the documents to train on: what a vocabulary may be trained from."""
        for split, document in self.documents():
            if split == "train":
                yield from document.sentences()

    def _filled(self, documents: Iterator[Document], split: Split) -> Iterator[Document]:
        for document in documents:
            if document.empty:
                self.skipped[split].append(document.name)
            else:
                yield document
