"""The filter of system calls, read as the kernel reads it, on both machines that have a table."""

import struct

import pytest

from referee import system_calls
from referee.system_calls import ALLOWED, MACHINES, REFUSED

ALLOW = 0x7FFF_0000
MATES = (5, 1, 1024, 9, 1036, 1038, 37, 38, 1033, 0x7E02_0000, 14, 20, 21, 25, 40, 38, 17, 0x6601, 0x9409, 0x5800)
"""Values of arguments, of which each call of the table must refuse some: other processes, leases, locks of open files,
hints, seals, namespaces, advice on files' pages, vsock, AF_ALG, AF_PACKET, and ioctls of file systems."""


def verdict(program: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Run a filter on a call, as seccomp does."""
    lines = [struct.unpack_from("HBBI", program, start) for start in range(0, len(program), 8)]
    data = {0: number, 4: architecture} | {16 + 8 * place: value for place, value in enumerate(arguments)}
    place = register = 0
    while True:
        operation, true, false, value = lines[place]
        if operation == 0x06:
            return value
        if operation in (0x20, 0x54):
            register = data.get(value, 0) if operation == 0x20 else register & value
            true = false = 0
        place += 1 + (true if {0x15: register == value, 0x35: register >= value}.get(operation) else false)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_its_table_and_no_other_call(machine):
    program, (architecture, column) = system_calls.program(machine), MACHINES[machine]
    tables = {number[column] for number in [*REFUSED.values(), *(number for number, _ in ALLOWED.values())]}
    assert len(tables) == len(REFUSED) + len(ALLOWED)
    assert all(verdict(program, architecture, number) == ALLOW for number in range(500) if number not in tables)
    assert all(verdict(program, architecture, number[column]) != ALLOW for number in REFUSED.values())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ALLOWED)
def test_a_call_is_allowed_with_its_listed_arguments_only(name, machine):
    program, (architecture, column) = system_calls.program(machine), MACHINES[machine]
    numbers, checks = ALLOWED[name]
    good = [0] * 6
    for argument, _, values in checks:
        good[argument] = values[0]
    assert verdict(program, architecture, numbers[column], (*good,)) == ALLOW
    for argument, mask, values in checks:
        for value in [*values, *MATES]:
            tried = (*good[:argument], value, *good[argument + 1 :])
            assert (verdict(program, architecture, numbers[column], tried) == ALLOW) == (value & mask in values)
        assert any(value & mask not in values for value in MATES)


def test_the_filter_refuses_other_numberings_and_unknown_machines():
    program = system_calls.program("x86_64")
    assert verdict(program, 0x4000_0003, 1) != ALLOW != verdict(program, MACHINES["x86_64"][0], 0x4000_0001)
    with pytest.raises(OSError, match="no table of system calls for riscv64; x86_64 and aarch64 have one"):
        system_calls.program("riscv64")
