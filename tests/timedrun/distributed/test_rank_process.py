"""Process of one rank: the kernel's count of processes killed for lack of memory."""

from pathlib import Path

import pytest

from timedrun.distributed.rank_process import oom_kills


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/job\n", {"job/memory.events": "low 0\noom 4\noom_kill 3\n"}, 3),
        ("0::/elsewhere\n", {"memory.events": "oom_kill 2\n"}, 2),
        ("9:name=systemd:/\n0::/\n", {"memory.events": "oom 1\n"}, 0),
        (None, {}, 0),
    ],
)
def test_oom_kills_are_those_of_the_processes_cgroup(
    tmp_path: Path, cgroup: str | None, files: dict[str, str], expected: int
) -> None:
    if cgroup is not None:
        (tmp_path / "cgroup").write_text(cgroup)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path / "cgroup", tmp_path) == expected
