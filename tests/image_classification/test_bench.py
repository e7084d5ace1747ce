"""`timedrun bench loader image_classification`: all loaders on the same images, missing ones with the reason."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from image_classification import bench
from image_classification.bench import CONTESTANTS, choice, make_stores, parts_of
from image_classification.configs import imagenet_baseline
from image_classification.loaders.loader import LoadedBatch
from image_classification.loaders.registry import LOADERS, ImageLoader
from image_classification.synthetic_images import SyntheticImages, write_images
from judging.ground.errors import DataError, ExitCode, UsageError
from timedrun.analysis.loader_benchmark import BenchOptions
from timedrun.cli import main

HERE = [name for name in ("pillow", "turbojpeg", "raw", "raw_host") if not LOADERS[CONTESTANTS[name][0]].unavailable()]
SMALL = BenchOptions(count=12, batch=5, repeats=1, sizes=(24,), workers=1, loaders=("pillow",))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 training images of two classes."""
    folder = tmp_path_factory.mktemp("bench") / "images"
    write_images(folder, SyntheticImages(train=16, evaluation=2, classes=2, width=80, height=60), workers=1)
    return folder


@pytest.mark.processes
def test_all_loaders_load_the_same_images_at_every_size(images: Path, tmp_path: Path) -> None:
    assert len(HERE) >= 3
    out = tmp_path / "rates.json"
    command = ["bench", "loader", "image_classification", "--images", str(images), "--count", "12", "--batch", "5"]
    command += ["--repeats", "2", "--workers", "1", "--sizes", "24", "16", "--loaders", *HERE, "--out", str(out)]
    threads = torch.get_num_threads()
    assert main(command) == ExitCode.OK
    assert torch.get_num_threads() == threads
    values = json.loads(out.read_text())
    assert {(row["loader"], row["size"]) for row in values["rows"]} == {(n, s) for n in HERE for s in (24, 16)}
    for row in values["rows"]:
        assert [one["samples"] for one in row["passes"]] == [12, 12]
        assert row["images_per_second"]["median"] > 0
    assert values["missing"].keys() == CONTESTANTS.keys() - set(HERE)
    assert str(tmp_path) not in out.read_text() and str(images) not in out.read_text()
    assert len({store["source_sha256"] for store in values["facts"]["stores"].values()}) == 1


def test_kept_stores_are_used_again_and_those_of_other_images_or_settings_refused(images: Path, tmp_path: Path) -> None:
    options = replace(SMALL, images=(images,))
    make_stores(tmp_path, ["jpeg"], options)
    manifest = tmp_path / "jpeg" / "timedrun_images.json"
    before = manifest.stat().st_mtime_ns
    assert make_stores(tmp_path, ["jpeg"], options).images == 16
    assert manifest.stat().st_mtime_ns == before
    shutil.copytree(tmp_path / "jpeg", tmp_path / "other" / "raw_256")
    with pytest.raises(UsageError, match="--stores"):
        make_stores(tmp_path / "other", ["raw_256"], options)
    fewer = shutil.copytree(images, tmp_path / "fewer")
    next((fewer / "train").rglob("*.jpg")).unlink()
    with pytest.raises(UsageError, match="different images"):
        make_stores(tmp_path, ["jpeg", "raw_256"], replace(SMALL, images=(fewer,)))


def test_a_loader_that_is_not_installed_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "it is not installed."
    monkeypatch.setattr(ImageLoader, "unavailable", lambda loader: reason if loader.name == "ffcv" else "")
    chosen, missing = choice([])
    assert missing == {"ffcv": reason}
    assert chosen == [name for name in CONTESTANTS if name not in missing]
    monkeypatch.setattr(ImageLoader, "unavailable", lambda loader: reason)
    with pytest.raises(DataError, match="none of the loaders can run here"):
        bench.loader(imagenet_baseline(), SMALL)


def test_an_unknown_loader_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "loader", "image_classification", "--loaders", "pilow"]) == ExitCode.USAGE
    assert "unknown loader pilow; known: pillow, turbojpeg" in capsys.readouterr().err


def test_a_loader_of_other_labels_gets_no_rate(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = make_stores(tmp_path, ["jpeg"], replace(SMALL, images=(images,)))

    @contextlib.contextmanager
    def opened(contestant: Any, *_: Any) -> Iterator[Any]:
        label = int(contestant.name == "turbojpeg")
        yield lambda samples, epoch: (
            LoadedBatch(torch.zeros(len(part), 3, 24, 24, dtype=torch.uint8), torch.full((len(part),), label))
            for part in parts_of(samples, 5)
        )

    monkeypatch.setattr(bench, "opened", opened)
    with pytest.raises(DataError, match="yielded different labels"):
        bench.measure(["pillow", "turbojpeg"], stores, SMALL, torch.device("cpu"))
