"""A build killed at any point and resumed yields the bytes of an undisturbed build."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image_classification.preparation.samples import image_folder, tars_of

SEED = int(os.environ.get("TIMEDRUN_TEST_SEED", "5"))
POINTS = 20
PROGRAM = "from tests.image_classification.preparation.interruption import main; main()"


@pytest.mark.processes
@pytest.mark.timeout(100)
def test_a_preparation_killed_anywhere_ends_in_the_same_bytes(tmp_path: Path) -> None:
    tars_of(image_folder(tmp_path / "images", train=6, evaluation=3), tmp_path / "tars", nested_validation=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(SEED), str(POINTS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    for name, points in json.loads(done.stdout).items():
        for point in points:
            assert point["same"] and point["done"] == 0, f"{name}, TIMEDRUN_TEST_SEED={SEED}: {point}\n{done.stderr}"
        assert all(point["ends"][0] is None for point in points), f"{name}: not killed"
        assert sum(not point["manifests"][0] for point in points) > POINTS / 2
        assert len({point["kills"][0] for point in points}) > POINTS / 2
