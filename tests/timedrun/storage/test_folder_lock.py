"""Folders that one process prepares: found fit, kept alone, and not left behind empty."""

from pathlib import Path

import pytest

from timedrun.errors import DataError
from timedrun.storage.folder_lock import claimed


def test_a_folder_to_which_nothing_came_is_removed_again_after_an_error_too(tmp_path: Path) -> None:
    out = tmp_path / "a" / "store"
    with pytest.raises(ZeroDivisionError), claimed(out, ["work"]):
        assert out.is_dir()
        raise ZeroDivisionError
    assert not out.exists()
    with claimed(out, ["work"]):
        (out / "work").mkdir()
    assert (out / "work").is_dir()


def test_while_one_has_it_nobody_else_gets_it(tmp_path: Path) -> None:
    with claimed(tmp_path / "store", []):
        with (
            pytest.raises(DataError, match="is being prepared by another process; nothing was done"),
            claimed(tmp_path / "store", []),
        ):
            pass
        assert (tmp_path / "store").is_dir()


def test_a_folder_of_something_else_and_a_file_are_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with (
        pytest.raises(DataError, match="holds precious and no store; nothing was prepared or touched"),
        claimed(tmp_path, ["work"]),
    ):
        pass
    with pytest.raises(DataError, match="is a file; nothing was prepared"), claimed(tmp_path / "precious", ["work"]):
        pass
    with claimed(tmp_path, ["work", "precious"]):
        pass
    assert (tmp_path / "precious").read_text() == "mine"
