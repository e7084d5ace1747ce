"""Effective settings of each format."""

import pytest

from image_classification.preparation.formats import effective_settings
from image_classification.stores.manifest import StoreConfig
from judging.ground.errors import UsageError
from tests.image_classification.preparation.built_stores import JPEG


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (StoreConfig(), "format folder is read in place"),
        (StoreConfig(format="raw"), "raw needs --data.store.size"),
        (StoreConfig(format="beton", jpeg_quality=0), "jpeg-quality must be from 1 to 100"),
        (StoreConfig(format="beton", jpeg_share=1.5), "jpeg-share must be from 0 to 1"),
        (StoreConfig(format="beton", size=-1), "size must not be negative"),
        (StoreConfig(format="raw", size=8, evaluation_resizes=(0,)), "evaluation-resizes must be positive"),
    ],
)
def test_invalid_settings_are_refused(settings: StoreConfig, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        effective_settings(settings, 16)


def test_unused_settings_are_reset_to_their_defaults() -> None:
    assert effective_settings(StoreConfig(format="jpeg", size=500, jpeg_quality=80), 16) == JPEG
    assert effective_settings(StoreConfig(format="raw", size=8, jpeg_share=0.1), 16).evaluation_resizes == (16,)
    assert effective_settings(
        StoreConfig(format="raw", size=8, evaluation_resizes=(9, 8, 9)), 16
    ).evaluation_resizes == (8, 9)
