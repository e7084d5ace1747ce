"""Host lists are read as SLURM writes them, and every launcher has words for where its variables are missing."""

import pytest

from timedrun.distributed import schedulers
from timedrun.distributed.launch_env import LAUNCHERS
from timedrun.distributed.schedulers import first_host


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node[1-2]", "node1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[7,3-5]-ib,x", "gpu7-ib"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]n[4,7]", "rack1n4"),
        ("node-1.cluster,node-2.cluster", "node-1.cluster"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list_of_slurms_is_found(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_every_launcher_that_can_be_chosen_has_a_reader_and_says_what_it_misses() -> None:
    assert {"auto", "none", *schedulers.READERS} == set(LAUNCHERS)
    assert schedulers.MISSING.keys() == schedulers.READERS.keys()
    assert all(read({}, None) is None for read in schedulers.READERS.values())
