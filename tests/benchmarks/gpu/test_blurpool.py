"""Three ways to blur are equal and timed."""

from pathlib import Path

import pytest

from benchmarks.gpu.blurpool import WAYS
from tests.benchmarks.gpu.script_run import passed, run

pytestmark = pytest.mark.timeout(300)


def test_three_ways_to_blur_are_equal_and_timed(tmp_path: Path) -> None:
    values, _ = run("blurpool", tmp_path)
    assert [row["given"] for row in values["BlurPool at 32 px"]["rows"]] == [*WAYS, "without BlurPool"]
    assert passed(values)[:2] == ["the ways agree at stride 1", "the ways agree at stride 2"]
