"""The timed loop and a bare one are compared."""

from pathlib import Path

import pytest

from tests.benchmarks.gpu.script_run import run

pytestmark = pytest.mark.timeout(300)


def test_the_loops_are_compared(tmp_path: Path) -> None:
    values, _ = run("overhead", tmp_path)
    assert len(values["loop_overhead"]["rounds"]) == 2 and values["loop_overhead"]["device"] == "cpu"
