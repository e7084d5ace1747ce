"""Archives of packages: reproducible bytes."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from timedrun.submission.packaging.archive import write_archive


def _tree(root: Path, names: list[str], mode: int, time: int) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
        (root / name).chmod(mode)
        os.utime(root / name, (time, time))
    return root


def test_bytes_depend_on_names_and_content_alone(tmp_path: Path) -> None:
    names = ["b/x.sh", "b/y.txt", "a.txt", "b.txt", "ä/z.txt", "b-c/x"]
    one = _tree(tmp_path / "one" / "Example", names, 0o600, 1)
    two = _tree(tmp_path / "two" / "Example", names[::-1], 0o777, 10**9)
    if os.geteuid() == 0:
        os.chown(two / "a.txt", 1234, 1234)
    os.link(two / "a.txt", tmp_path / "another name of the same file")
    for folder in (one, two):
        write_archive(folder, folder.parent / "x.tar.gz")
    first, second = ((folder.parent / "x.tar.gz").read_bytes() for folder in (one, two))
    assert first == second
    assert first[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "no name and no time in gzip's header"
    with tarfile.open(one.parent / "x.tar.gz") as tar:
        for name in names:
            file = tar.extractfile(f"Example/{name}")
            assert file is not None and file.read() == name.encode()
        modes = {entry.name: (entry.mode, entry.uid, entry.gid, entry.uname, entry.gname, entry.mtime) for entry in tar}
    assert modes["Example/b/x.sh"] == (0o755, 0, 0, "", "", 0) and modes["Example/a.txt"] == (0o644, 0, 0, "", "", 0)
