"""Result sets of a race and of a package, with hostile names, as the explorer shows them."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlevents import keys
from tests.judging.conftest import WriteRun

HOSTILE = '</script><img src=x onerror="document.title=1">\u202e{{data}}'


@pytest.fixture
def results(tmp_path: Path, write_run: WriteRun) -> Path:
    """`results/baseline` and `results/fast` on digits, and a package whose submitter has a hostile name."""
    folder = tmp_path / "results"
    small: dict[str, Any] = {keys.DATASET: "digits", keys.QUALITY_TARGET: 0.75, keys.TRAIN_SAMPLES: 1000}
    for number in range(3):
        write_run(folder / "baseline", number, minutes=10.0 + number, **small | {keys.CONFIG_NAME: "digits_baseline"})
        fast = {keys.CONFIG_NAME: "digits_methods", "qualities": (0.5, 0.8), keys.SEED: number + 11}
        write_run(folder / "fast", number, minutes=5.0 + number, start=1.9e9 + number * 1e5, **small | fast)
    formula = small | {keys.CONFIG_NAME: "=1+1", "qualities": (0.2, 0.3), "platform": HOSTILE}
    write_run(folder / "missed", 0, minutes=2.0, start=1.95e9, **formula)
    submitter = folder / "v2.0" / "Example Inc"
    write_run(submitter / "results" / "box" / "resnet", 0, minutes=30.0, start=1.7e9)
    (submitter / "systems").mkdir()
    described = {
        "number_of_nodes": "2",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA A100-SXM4-80GB",
    }
    (submitter / "systems" / "box.json").write_text(json.dumps(described))
    return folder
