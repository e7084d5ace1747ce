"""A script measures nothing without a GPU, or once a check of correctness has failed."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.block import Block


def test_a_failed_check_ends_the_script_and_is_written(tmp_path: Path) -> None:
    block = Block("some", Namespace(tiny=True, out=tmp_path))
    with pytest.raises(SystemExit, match="nothing after it was measured"):
        block.check("equal", False, {"apart": 1.0})
    assert json.loads((tmp_path / "some.json").read_text())["checks"]["equal"]["found"] == {"apart": 1.0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no CUDA device; nothing was measured"):
        Block("some", Namespace(tiny=False, out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()
