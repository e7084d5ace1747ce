"""Each example runs as a user runs it; its methods act, and its averaged weights have learned."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("example", "requires", "expected", "measure", "bound"),
    [
        ("plain_loop", "sklearn", "label_smoothing: 230 batches", r"accuracy of the averaged weights ([\d.]+)", 0.6),
        # 60 and 115 updates: the state of the first half came back with the checkpoint
        ("hugging_face_trainer", "accelerate", "ema: 60 updates", r"loss of the averaged weights ([\d.]+)", -3.0),
        ("lightning_module", "pytorch_lightning", "ema: 115 updates", r"accuracy of the averaged.* ([\d.]+) \(", 0.6),
        ("torchtitan_loop", "transformers", "sam: 4 steps", r"loss of the averaged weights ([\d.]+)", -3.0),
        ("any_script --epochs 3", "sklearn", "training starts", r"accuracy ([\d.]+) time", 0.6),
        (
            "hugging_face_bert --target 0.03 --layers 1 --hidden 32 --heads 2",
            "accelerate",
            "training starts",
            r"accuracy ([\d.]+)",
            0.03,
        ),
        ("own_bert 16", "transformers", "training starts", r"accuracy ([\d.]+)", 0.04),
        ("own_bert_recipe 16", "transformers", "unpadding: 2 layers on", r"accuracy ([\d.]+)", 0.04),
    ],
)
def test_an_example_trains_with_its_methods(example, requires, expected, measure, bound, trainers, tmp_path):
    if find_spec(requires) is None:
        pytest.skip(f"{requires} is not installed")
    name, *options = example.split()
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    done = subprocess.run(
        [sys.executable, f"{name}.py", *options], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    for found in re.findall(measure, done.stdout):
        assert float(found) > bound if bound > 0 else float(found) < -bound
    assert re.search(measure, done.stdout)
    if example == "hugging_face_trainer":
        averaged, loaded = re.findall(r"(?:weights|loading) ([\d.]+)", done.stdout)
        assert averaged == loaded
