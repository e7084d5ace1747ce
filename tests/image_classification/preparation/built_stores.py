"""Stores of each format built from the samples with few images per shard, complete or interrupted."""

from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from image_classification.preparation import builder, shard_writer
from image_classification.preparation.builder import build_store
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.sources import open_source
from image_classification.stores.manifest import StoreConfig
from tests.image_classification.stores.small_stores import NEEDS_FFCV

JPEG = StoreConfig(format="jpeg")
RAW = StoreConfig(format="raw", size=16, evaluation_resizes=(16,))
BETON = StoreConfig(format="beton", size=24)
FORMATS = pytest.mark.parametrize(
    "settings", [JPEG, RAW, pytest.param(BETON, marks=NEEDS_FFCV)], ids=lambda settings: settings.format
)


def silent(_: str) -> None:
    """Discard progress lines."""


def build(images, out, settings, *, workers=1, skip_broken=False, report=silent):
    """Build a store with 8 images per shard."""
    with patch.object(builder, "SHARD_IMAGES", 8):
        return build_store(
            partial(open_source, images, report),
            out,
            effective_settings(settings, 16),
            workers=workers,
            skip_broken=skip_broken,
            report=report,
        )


def interrupt(shards: int, images: Path, out: Path, settings: StoreConfig, **options: bool) -> None:
    """Build, and interrupt the build after `shards` shards."""
    save, saved = shard_writer.save_shard, list[object]()

    def limited(*arguments: object) -> None:
        save(*arguments)
        saved.append(arguments)
        if len(saved) == shards:
            raise KeyboardInterrupt

    with patch.object(shard_writer, "save_shard", limited), pytest.raises(KeyboardInterrupt):
        build(images, out, settings, **options)
