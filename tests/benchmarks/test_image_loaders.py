"""Rates of the image loaders: all on the same images, and none if one yields other labels."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import image_loaders


def measure(tmp_path: Path, *options: str) -> dict[str, Any]:
    small = ["--count", "12", "--batch", "5", "--repeats", "2", "--workers", "1", "--sizes", "24"]
    return image_loaders.main([*small, "--stores", str(tmp_path), "--out", str(tmp_path / "rates.json"), *options])


@pytest.mark.processes
def test_loaders_are_measured_on_the_same_images_whose_stores_are_kept(tmp_path, monkeypatch):
    for name in ("torch.set_num_threads", "benchmarks.image_loaders.set_backends"):
        monkeypatch.setattr(name, lambda *_, **__: None)  # of the other tests
    values = measure(tmp_path, "--loaders", "pillow", "raw", "raw_host")
    assert [row["loader"] for row in values["rows"]] == ["pillow", "raw", "raw_host"] and not values["missing"]
    assert all(len(row["images_per_second"]["all"]) == 2 for row in values["rows"])
    text = (tmp_path / "rates.json").read_text()
    assert json.loads(text)["rows"] == values["rows"] and str(tmp_path) not in text
    before = (tmp_path / "jpeg/timedrun_images.json").stat().st_mtime_ns
    labels = iter([(1.0, 1.0, label) for label in (5, 6)])
    monkeypatch.setattr(image_loaders, "measured_pass", lambda *_: next(labels))
    with pytest.raises(SystemExit, match="different labels"):
        measure(tmp_path, "--loaders", "pillow", "raw")
    assert (tmp_path / "jpeg/timedrun_images.json").stat().st_mtime_ns == before
