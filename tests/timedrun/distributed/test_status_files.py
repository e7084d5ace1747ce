"""What ranks tell their supervisor: each sign by its rank, and nothing where it could not be written whole."""

import os
from pathlib import Path

import pytest

from timedrun.distributed import status_files
from timedrun.distributed.launch_env import STATUS_FILES


def test_the_number_of_the_run_is_told_by_any_rank_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = status_files.StatusFiles(tmp_path)
    assert told.number(range(2, 4)) is None
    monkeypatch.setenv("RANK", "3")
    status_files.tell_number(7)  # nobody asked for signs
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv(STATUS_FILES, str(tmp_path))
    status_files.tell_number(12)
    assert told.number(range(2, 4)) == 12
    assert told.number(range(2)) is None
    (tmp_path / "rank_3.number").write_text('{"number": 1')  # a disk that was full in the middle of it
    assert told.number(range(2, 4)) is None
