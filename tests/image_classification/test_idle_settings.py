"""Settings of data that would do nothing are told, and no config sets any."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from image_classification.configs import digits_methods, imagenet_baseline, imagenet_methods, synthetic_smoke
from image_classification.datasets import preflight
from image_classification.idle_settings import idle_settings
from image_classification.stores.manifest import StoreConfig
from timedrun.methods import ProgressiveResizing


@pytest.mark.parametrize("config", [imagenet_baseline, imagenet_methods, digits_methods, synthetic_smoke])
def test_no_config_sets_what_does_nothing(config: Callable[[], Any]) -> None:
    assert idle_settings(config().data) == []


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (digits_methods, {"read_ahead": True}, "without effect for digits and order random: data.read_ahead"),
        (digits_methods, {"loader": "ffcv", "prefetch": 9}, "data.loader (leave it at 'pillow'), data.prefetch (leave"),
        (
            digits_methods,
            {"store": StoreConfig(format="raw", size=9)},
            "data.store.format (leave it at 'folder'), data",
        ),
        (digits_methods, {"synthetic_train": 4}, "data.synthetic_train (leave it at 0)"),
        (digits_methods, {"train_size": 16}, "digits has images of 8 px"),
        (imagenet_methods, {"padding": 4, "flip": True}, "data.padding (leave it at 0), data.flip"),
        (imagenet_methods, {"order_block": 8}, "order random: data.order_block (leave it at 256)"),
        (
            imagenet_methods,
            {"store": StoreConfig(format="jpeg", size=9)},
            "format jpeg and order random: data.store.size",
        ),
        (imagenet_methods, {"store": StoreConfig(format="raw", size=9, jpeg_quality=3)}, "data.store.jpeg_quality"),
        (imagenet_methods, {"order": "quasi_random", "order_window": 0}, "count from 1"),
        (imagenet_methods, {"prefetch": -1}, "count from 0"),
    ],
)
def test_settings_that_do_nothing_are_told(config: Callable[[], Any], changes: dict[str, Any], words: str) -> None:
    chosen = config()
    found = preflight(replace(chosen, data=replace(chosen.data, **changes)), None, 1)
    assert sum(words in line for line in found) == 1, found


def test_loading_at_the_size_of_the_epoch_is_refused_for_images_in_memory() -> None:
    method = ProgressiveResizing(where="loader")
    found = preflight(replace(synthetic_smoke(), methods=(method,)), None, 1)
    assert [line for line in found if "--methods.progressive-resizing.where batch" in line]
    assert preflight(replace(synthetic_smoke(), methods=(ProgressiveResizing(),)), None, 1) == []
