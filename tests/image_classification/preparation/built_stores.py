"""Stores of each format built from the samples with few images per shard, complete or interrupted."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from image_classification.preparation import builder, shard_writer
from image_classification.preparation.builder import Built, build_store
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.sources import open_source
from image_classification.stores.manifest import StoreConfig

JPEG = StoreConfig(format="jpeg")
RAW = StoreConfig(format="raw", size=16, evaluation_resizes=(16,))
BETON = StoreConfig(format="beton", size=24)
FORMATS = pytest.mark.parametrize("settings", [JPEG, RAW, BETON], ids=lambda settings: settings.format)


def silent(_: str) -> None:
    """Discard progress lines."""


def build(
    images: Path | tuple[Path, ...],
    out: Path,
    settings: StoreConfig,
    *,
    labels: Path | None = None,
    workers: int = 1,
    skip_broken: bool = False,
    report: Callable[[str], None] = silent,
) -> Built:
    """Build a store with 8 images per shard."""
    paths = (images,) if isinstance(images, Path) else images
    with patch.object(builder, "SHARD_IMAGES", 8):
        return build_store(
            lambda cache: open_source(paths, labels, cache, report),
            out,
            effective_settings(settings, 16),
            workers=workers,
            skip_broken=skip_broken,
            report=report,
        )


def stop_after(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    """Interrupt the build after `shards` shards."""
    left = [shards]
    save = shard_writer.save_shard

    def saved(*arguments: object) -> None:
        save(*arguments)  # type: ignore[arg-type]
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(shard_writer, "save_shard", saved)
