"""Folders that one process prepares: found fit, kept alone, and not left behind empty."""

from pathlib import Path

import pytest

from judging.ground.errors import DataError
from judging.ground.folder_lock import locked


def test_an_empty_folder_is_removed_after_an_error_too(tmp_path: Path) -> None:
    out = tmp_path / "a" / "store"
    with pytest.raises(ZeroDivisionError), locked(out, ["work"]):
        assert out.is_dir()
        raise ZeroDivisionError
    assert not out.exists()
    with locked(out, ["work"]):
        (out / "work").mkdir()
    assert (out / "work").is_dir()


def test_a_locked_folder_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path / "store", []):
        with (
            pytest.raises(DataError, match="is being prepared by another process; wait until"),
            locked(tmp_path / "store", []),
        ):
            pass
        assert (tmp_path / "store").is_dir()


def test_a_foreign_folder_and_a_file_are_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with (
        pytest.raises(DataError, match="holds precious but no store; nothing was prepared or changed"),
        locked(tmp_path, ["work"]),
    ):
        pass
    with pytest.raises(DataError, match="is a file; nothing was prepared"), locked(tmp_path / "precious", ["work"]):
        pass
    with locked(tmp_path, ["work", "precious"]):
        pass
    assert (tmp_path / "precious").read_text() == "mine"
