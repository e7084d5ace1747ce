"""Steps of ResNet-50 are compared before they are timed; the slower of loader and step is projected."""

import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu.block import Block
from benchmarks.gpu.blurpool import BlurByConvolution, by_convolution, with_blur
from benchmarks.gpu.resnet50 import compare_as_timed, epoch_sizes, project, resident
from image_classification.configs import imagenet_methods
from image_classification.prepare import prepare
from image_classification.stores.manifest import StoreConfig
from tests.benchmarks.gpu.script_run import passed, run
from timedrun.methods.blurpool import blur, blur_by_slices

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A raw store of 24 training images and 6 evaluation images of two classes."""
    images = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 3)):
        for label in ("ant", "bee"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (40 + number, 60 - number, 3), dtype=np.uint8)
                images.fromarray(pixels).save(folder / f"{number:02d}.jpg")
    base = imagenet_methods()
    config = replace(base, data=replace(base.data, eval_resize=40, store=StoreConfig(format="raw", size=40)))
    prepare(config, tmp_path / "store", decode=False, workers=1, images=[tmp_path / "images"])
    return tmp_path / "store"


def test_resnet_is_compared_with_fp64_and_as_timed_and_projected(tmp_path: Path, store: Path) -> None:
    values, output = run("resnet50", tmp_path, "--store", f"raw={store}")
    labels = [f"{name}{done}, 32 px" for done in ("", ", compiled") for name in ("baseline", "methods")]
    assert passed(values)[4:] == [f"{label}: as timed, as eager fp32" for label in labels]
    assert {row["given"] for row in values["32 px"]["rows"]} >= {"baseline", "methods, compiled"}
    assert {row["global_batch"] for row in values["fed by raw"]["rows"]} == {8}
    assert values["fed_images_per_second"]["raw"]["methods"].keys() == {"32"}
    assert values["projections"].keys() == {"resident", "raw"}
    assert output.index("as timed, as eager") < output.index("32 px: steps") < output.rindex("images per second")


def test_a_compiled_blur_of_another_padding_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blurred(inputs: torch.Tensor, kernel: torch.Tensor, stride: Any = 1) -> torch.Tensor:
        if torch.compiler.is_compiling() and wrong:
            padded = torch.nn.functional.pad(inputs, (1, 1, 1, 1), mode="replicate")
            down, right = (stride, stride) if isinstance(stride, int) else stride
            return blur_by_slices(padded, 1)[:, :, 1:-1:down, 1:-1:right]
        return by_convolution(inputs, kernel, stride)

    class Changed(BlurByConvolution):
        way = staticmethod(blurred)

    monkeypatch.setattr(sys.modules["timedrun.methods.blurpool"], "blur", blur)  # restored after a way was chosen
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    block = Block("some", Namespace(tiny=True, out=tmp_path))
    config = with_blur(replace(resident("methods", 32, 16, tiny=True), compile=True), Changed)
    wrong = False
    compare_as_timed(block, "right", config)
    wrong = True
    with pytest.raises(SystemExit, match="wrong: as timed"):
        compare_as_timed(block, "wrong", config)


def test_the_projection_counts_the_pixels_of_each_epoch() -> None:
    per_pixel = {size: 1e9 / size**2 for size in (88, 128, 160, 176, 224)}
    baseline, methods = (project(name, per_pixel).minutes for name in ("baseline", "methods"))
    assert baseline == pytest.approx(84 * 1_281_167 * 224**2 / 1e9 / 60)
    # 88 px for 40 % of 27 epochs, 176 px for 20 %, in between in steps: a mean of 0.33 of 224 px (docs of the recipe).
    assert methods / baseline == pytest.approx(27 / 84 * 0.33, rel=0.06)


def test_a_loader_limits_the_projection_where_it_is_slower_than_the_step() -> None:
    rates = {size: 1e9 / size**2 for size in (88, 224)}
    loader = {88: 40_000.0, 176: 40_000.0}  # slower than steps below 158 px
    found, alone = project("methods", rates, loader), project("methods", rates)
    sizes = epoch_sizes("methods")
    slow = [size for size in sizes if rates[88] * 88**2 / size**2 > 1.05 * 40_000]
    assert found.limited == pytest.approx(len(slow) / len(sizes)) and 0.4 < found.limited < 1
    seconds = [max(size**2 / 1e9, 1 / 40_000) for size in sizes]
    assert found.minutes == pytest.approx(1_281_167 * sum(seconds) / 60)
    assert alone.limited == 0 and alone.minutes < found.minutes
    assert project("methods", rates, {88: 1e9}) == alone
