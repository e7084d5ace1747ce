"""Configs of image classification as results/ has them."""

from typing import Any

import pytest

from image_classification.configs import cifar10_baseline, digits_baseline, imagenet_baseline
from image_classification.settings import ImageRunConfig
from timedrun.config import dump, load


@pytest.mark.parametrize(("make", "old", "new"), [(digits_baseline, False, "none"), (cifar10_baseline, True, "random")])
def test_a_recorded_config_with_a_switch_of_flips_is_read(make: Any, old: bool, new: str) -> None:
    values = dump(make())
    assert values["data"]["flip"] == new
    values["data"]["flip"] = old
    assert dump(load(ImageRunConfig, values)) == dump(make())


def test_stored_images_were_flipped_whatever_the_switch_said() -> None:
    values = dump(imagenet_baseline())
    values["data"]["flip"] = False
    assert load(ImageRunConfig, values).data.flip == "random"
