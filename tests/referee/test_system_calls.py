"""The filter of system calls, read as the kernel reads it, on both machines that have a table."""

import struct

import pytest

from referee import system_calls
from referee.system_calls import CLONE, MACHINES, NEW_NAMESPACES, OWN, REFUSED

ALLOW = 0x7FFF_0000


def verdict(program: bytes, architecture: int, number: int, first: int = 0) -> int:
    """Run a filter on a call, as seccomp does."""
    lines = [struct.unpack_from("HBBI", program, start) for start in range(0, len(program), 8)]
    data, place, register = {0: number, 4: architecture, 16: first}, 0, 0
    while True:
        operation, true, false, value = lines[place]
        if operation == 0x06:
            return value
        if operation == 0x20:
            register, passed = data[value], False
        else:
            passed = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[operation]
        place += 1 + (true if passed else false if operation != 0x20 else 0)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_its_table_and_no_other_call(machine):
    program, (architecture, column) = system_calls.program(machine), MACHINES[machine]
    tables = {number[column] for table in (REFUSED, OWN) for number in table.values()} | {CLONE[column]}
    others = [number for number in range(500) if number not in tables]
    assert all(verdict(program, architecture, number) == ALLOW for number in others)
    assert all(verdict(program, architecture, number[column]) != ALLOW for number in REFUSED.values())
    for number in (of[column] for of in OWN.values()):
        assert verdict(program, architecture, number, 0) == ALLOW != verdict(program, architecture, number, 1)
    thread, user = 0x3D0F00, NEW_NAMESPACES & 0x1000_0000
    assert verdict(program, architecture, CLONE[column], thread) == ALLOW
    assert verdict(program, architecture, CLONE[column], thread | user) != ALLOW


def test_the_filter_refuses_other_numberings_and_unknown_machines():
    program = system_calls.program("x86_64")
    assert verdict(program, 0x4000_0003, 1) != ALLOW != verdict(program, MACHINES["x86_64"][0], 0x4000_0001)
    with pytest.raises(OSError, match="no table of system calls for riscv64; x86_64 and aarch64 have one"):
        system_calls.program("riscv64")
