"""Split of documents into training and evaluation, given separately or held out by a hash; no text is in both."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from judging.ground.errors import DataError
from language_model.text.corpus import Document
from language_model.text.store import Split

Documents = Callable[[], Iterator[Document]]
"""Function that iterates over the documents of a corpus from the beginning at every call."""


@dataclass
class Corpora:
    """Training documents and evaluation documents, given separately or held out."""

    train: Documents
    evaluation: Documents | None = None
    held_out: float = 0.0
    """Share of documents held out by a hash of their text if no evaluation documents are given."""
    skipped: dict[Split, list[str]] = field(default_factory=lambda: {"train": [], "evaluation": []})
    """Names of the empty documents in the last pass."""

    def documents(self) -> Iterator[tuple[Split, Document]]:
        """Yield every non-empty document with its split. Raises DataError if evaluation documents also occur in the
        training text; up to twenty are named."""
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
                f"{len(leaked)} evaluation documents are also in the training text; no store was written; "
                f"remove them from one of the two:\n{shown}{more}"
            )

    def training_sentences(self) -> Iterator[str]:
        """Yield the sentences of the training documents, from which a vocabulary may be trained."""
        for split, document in self.documents():
            if split == "train":
                yield from document.sentences()

    def _filled(self, documents: Iterator[Document], split: Split) -> Iterator[Document]:
        for document in documents:
            if document.empty:
                self.skipped[split].append(document.name)
            else:
                yield document
