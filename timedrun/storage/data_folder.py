"""The folder that a user's data lies in: given and there, or words that say what to give."""

from __future__ import annotations

from pathlib import Path

from timedrun.errors import DataFolderMissing


def required(folder: Path | None, source: str) -> Path:
    """`folder`, once it is given and exists; `source` says what needs it.

    Raises:
        DataFolderMissing: it is not.
    """
    if folder is None:
        raise DataFolderMissing(f"{source} needs a folder: give it with --data-folder (or TIMEDRUN_DATA).")
    if not folder.is_dir():
        raise DataFolderMissing(f"data folder {folder} does not exist; give the right one with --data-folder PATH.")
    return folder
