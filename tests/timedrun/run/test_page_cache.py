"""Caches are dropped through the kernel's own file, once a node, or the log has the reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.timedrun.distributed.thread_ranks import on_all
from timedrun.distributed.process_group import ProcessGroup
from timedrun.run import page_cache
from timedrun.run.page_cache import clear_on_every_node, drop_file

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
25 22 0:5 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
26 25 0:5 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
"""


def test_the_kernels_file_is_found_where_a_container_has_it_writable_and_nowhere_else(tmp_path):
    mounts = tmp_path / "mountinfo"
    assert drop_file(mounts) == Path("/proc/sys/vm/drop_caches")
    mounts.write_text(MOUNTS + "27 22 8:1 /home/x/drop_caches /drop_caches rw - ext4 /dev/sda1 rw\n")  # a plain file
    assert drop_file(mounts) == Path("/proc/sys/vm/drop_caches")
    with mounts.open("a") as file:
        file.write("28 22 0:4 /sys/vm/drop_caches /read_only ro,relatime - proc proc rw\n")
        file.write("29 22 0:4 /sys/vm/drop_caches /drop\\040caches rw,relatime shared:3 - proc proc rw\n")
    assert drop_file(mounts) == Path("/drop caches")


def test_caches_that_cannot_be_dropped_have_a_reason_without_a_path(tmp_path):
    assert page_cache.clear(tmp_path / "file") == (True, "")
    assert (tmp_path / "file").read_text() == "3\n"
    assert page_cache.clear(tmp_path) == (False, "IsADirectoryError: Is a directory")


def test_caches_are_cleared_once_on_each_node_and_count_as_cleared_only_where_all_were():
    cleared, failed = (True, ""), (False, "read-only")
    calls: list[int] = []

    def told(*nodes: tuple[bool, str]) -> list[Any]:
        """What each of two ranks of every node is told."""

        def body(ranks: ProcessGroup) -> tuple[bool, str]:
            def clear() -> tuple[bool, str]:
                calls.append(ranks.rank)
                return nodes[ranks.rank // 2]

            return clear_on_every_node(replace(ranks, local_rank=ranks.rank % 2), clear)

        return on_all(2 * len(nodes), body)

    assert told(cleared, cleared) == [(True, "")] * 4
    assert sorted(calls) == [0, 2]  # not by a local rank 1
    assert told(cleared, failed) == [(False, "node 1 of 2: read-only")] * 4
    assert told(failed) == [failed] * 2
