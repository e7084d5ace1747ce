"""Values that not every reader reads back unchanged are rejected, by key, before anything is written."""

import math
from typing import Any

import numpy as np
import pytest

from mlevents.runlog import RunLog

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(0.5),
        np.zeros(2),
        np.float32(0.5),
        b"x",
        math.nan,
        math.inf,
        [1, math.nan],
        {"a": {1: 2}},
        {"a": object()},
        "line :::MLLOG {",
        "\udc80",
        2**64,
    ],
)
def test_what_cannot_be_written_raises_with_the_key_and_leaves_the_file_untouched(tmp_path, value):
    path = tmp_path / "result_0.txt"
    log = RunLog(path)
    log.event("first", 1)
    before = path.read_bytes()
    with pytest.raises((TypeError, ValueError), match="value of loss"):
        log.event("loss", value)
    with pytest.raises((TypeError, ValueError), match="metadata of loss"):
        log.event("loss", 1, extra=value)
    assert path.read_bytes() == before


def test_a_value_that_holds_itself_is_refused():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested"):
        RunLog(None).event("loop", value)
