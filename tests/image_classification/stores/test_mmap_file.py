"""Memory-mapped files: content, no descriptor held, unmapped with the last view."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from image_classification.stores.mmap_file import map_file
from judging.ground.errors import DataError


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_a_map_holds_no_descriptor_and_is_unmapped_with_its_last_view(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    array = map_file(path)
    links = [link for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)]
    assert not any(str(path) == os.path.realpath(link) for link in links)
    view = array[256:512].reshape(16, 16)[:, 8:]
    del array
    gc.collect()
    assert maps_of(path) == 1
    assert view.tobytes() == np.arange(256, dtype=np.uint8).reshape(16, 16)[:, 8:].tobytes()
    del view
    gc.collect()
    assert maps_of(path) == 0


def test_a_map_is_read_only_an_empty_file_has_one_and_a_missing_one_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    array = map_file(tmp_path / "file")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    (tmp_path / "empty").touch()
    assert map_file(tmp_path / "empty").size == 0
    with pytest.raises(DataError, match="none: cannot be mapped"):
        map_file(tmp_path / "none")
