"""The kernel's count of processes that it killed for memory is read where it has one."""

from pathlib import Path

import pytest

from timedrun.distributed import oom_kills


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/job\n", {"job/memory.events": "low 0\noom 4\noom_kill 3\n"}, 3),
        ("0::/elsewhere\n", {"memory.events": "oom_kill 2\n"}, 2),
        ("9:name=systemd:/\n4:memory:/job\n", {"memory/job/memory.oom_control": "under_oom 0\noom_kill 1\n"}, 1),
        ("4:memory:/job\n", {"memory/job/memory.oom_control": "under_oom 0\n"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_oom_kills_are_read_from_either_version_of_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills.count(tmp_path / "cgroup", tmp_path) == expected
