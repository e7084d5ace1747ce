"""Cores and memory that a process may use: within the quotas and limits of its control groups."""

import pytest

from judging.ground import cores

FIRST, SECOND = ("cpu.cfs_quota_us", "cpu.cfs_period_us"), ("cpu.max",)
NESTED = "0::/a.slice/b.scope"


def simulate(folder, monkeypatch, own, files):
    for path, text in {"own": own, **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{text}\n" * bool(text))
    monkeypatch.setattr(cores, "GROUPS", folder)
    monkeypatch.setattr(cores, "OWN_GROUPS", folder / "own")


@pytest.mark.parametrize(
    ("own", "limits", "usable"),
    [
        ("", {}, 16),
        ("0::/", {"": "max 100000"}, 16),
        ("0::/", {"": "765000 100000"}, 7),  # rounded down
        ("0::/", {"": "50000 100000"}, 1),
        ("0::/", {"": "9900000 100000"}, 16),  # above the affinity
        (NESTED, {"a.slice": "max 100000", "a.slice/b.scope": "300000 100000", "other": "100000 100000"}, 3),
        (NESTED, {"a.slice": "200000 100000", "a.slice/b.scope": "300000 100000"}, 2),  # that of the group around it
        ("0::/docker/f00/job", {"job": "300000 100000"}, 3),  # the mount is the container's own group, /docker/f00
        ("0::/../other", {"": "400000 100000"}, 4),
        ("", {"cpu": "100000 100000"}, 1),
        ("1:cpu:/", {"cpu": "-1 100000"}, 16),
        ("4:cpu,cpuacct:/docker/f00", {"cpu,cpuacct/docker/f00": "250000 100000"}, 2),
        ("4:cpu,cpuacct:/docker/f00", {"cpu,cpuacct": "250000 100000"}, 2),
        ("2:cpuacct:/x\n1:cpu:/a/b", {"cpu/a": "150000 50000", "cpu/a/b": "-1 50000", "cpuset": "50000 50000"}, 3),
        ("5:cpu:/\n0::/a", {"cpu": "500000 100000", "unified/a": "400000 100000"}, 4),
    ],
)
def test_the_smallest_quota_of_the_groups_of_a_process_counts(tmp_path, monkeypatch, own, limits, usable):
    files = {}
    for folder, limit in limits.items():
        names = FIRST if folder.startswith("cpu") else SECOND
        texts = limit.split() if names == FIRST else [limit]
        files |= {f"{folder}/{name}".lstrip("/"): text for name, text in zip(names, texts, strict=True)}
    simulate(tmp_path, monkeypatch, own, files)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: range(16))
    assert cores.usable_cores() == usable


@pytest.mark.parametrize(
    ("own", "limits", "usable"),
    [
        ("0::/", {"memory.max": "max"}, 1000),
        ("0::/", {"memory.max": "300"}, 300),
        (NESTED, {"a.slice/memory.max": "200", "a.slice/b.scope/memory.max": "300", "c/memory.max": "1"}, 200),
        ("7:memory:/docker/f00", {"memory/memory.limit_in_bytes": "400", "cpu/memory.limit_in_bytes": "1"}, 400),
        (
            "7:memory:/a\n6:cpu:/b",
            {"memory/a/memory.limit_in_bytes": "500", "memory/b/memory.limit_in_bytes": "1"},
            500,
        ),
        ("7:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 1000),
    ],
)
def test_the_smallest_memory_limit_of_the_groups_of_a_process_counts(tmp_path, monkeypatch, own, limits, usable):
    simulate(tmp_path, monkeypatch, own, limits)
    assert cores.usable_memory(1000) == usable
