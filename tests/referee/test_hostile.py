"""A hostile submission is ended with a clear verdict and leaves no process and no file."""

import os
import platform
import re
import time
from pathlib import Path

import psutil
import pytest
import torch

from referee import channel, child
from referee.system_calls import ALLOWED, MACHINES, REFUSED
from referee.verdict import Verdict
from tests.referee.informed_cheats import DATA_NOTES, NOTES
from tests.referee.submissions import FILES

pytestmark = pytest.mark.processes
START = "import os, sys, time\nfrom base import *\ndef build(task):\n    return Bigram(task.vocabulary)\n"
HOSTILE = {
    "starts processes that start processes": (
        "while True:\n        try: os.fork()\n        except OSError: time.sleep(0.01)",
        "processes and threads",
    ),
    "starts threads without end": (
        "import threading\n    while True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "can't start new thread|had 2[5-7] processes and threads, of 24",  # the watcher may be first
    ),
    "prints without end": ("while True: os.write(1, b'x' * 65536)", "printed more than 1,048,576 bytes"),
    "fills the work folder": ("open('big', 'wb').write(bytes(64 << 20))", "No space left on device"),
    "takes memory in one piece": ("found = torch.zeros(4 << 30, dtype=torch.uint8).fill_(1)", "allocate memory"),
    "takes memory in many processes": (
        "for _ in range(3): os.fork()\n    found = bytearray(os.urandom(1 << 20)) * 150\n    time.sleep(60)",
        "bytes of memory, of 1,073,741,824 allowed",
    ),
    "takes memory that processes share": (
        "import mmap\n    found = mmap.mmap(-1, 5 << 28)\n"
        "    for n in range(0, 5 << 28, 4096): found[n] = 1\n    time.sleep(60)",
        "bytes of memory, of 1,073,741,824 allowed",
    ),
    "takes memory that no process has": (
        "os.memfd_create('found')",
        "not implemented: the referee's filter of system calls refused it",
    ),
    "hangs": ("time.sleep(60)", "longer than 1 s"),
    "spins, deaf to signals": (
        "import signal\n    for n in (2, 15): signal.signal(n, signal.SIG_IGN)\n    while True: pass",
        "longer than 1 s",
    ),
    "kills itself": ("os.kill(os.getpid(), 9)", "ended without an answer"),
    "kills all it can reach": ("try: os.kill(-1, 9)\n    except OSError: time.sleep(60)", "longer than 1 s"),
    "stops the server and its parent": (
        "for number in (9, 19):\n        try: os.kill(1, number)\n        except OSError: pass\n    os._exit(0)",
        "ended without an answer",
    ),
    "reads what it wrote to /tmp": (
        "open('/tmp/a', 'w').write('found'); raise ValueError(open('/tmp/a').read(), os.access('/tmp/w', 2))",
        "'found', False",
    ),
    "writes to the host": ("open('/usr/x', 'w')", "Error"),
    "writes to the place of the validation data": (f"open({os.fspath(Path(__file__))!r}, 'w')", "No such file"),
    "hands over other weights": ("model.head.weight.data = torch.zeros(64, 1 << 15)", "return the module that is"),
    "hands over much more than was built": ("torch.save = lambda state, file: file.write(bytes(2 << 20))", "due"),
    "hands over what is no tensor": ("type(model).get_extra_state = lambda self: {}", "is dict, not a tensor"),
    "ends itself": ("sys.exit(0)", "catch SystemExit around its main"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_submission_is_ended_with_its_reason(name, examine, referee):
    body, reason = HOSTILE[name]
    verdict = examine(
        f"{START}def train(model, task, shards):\n    {body}\n", budget_seconds=1 if "1 s" in reason else 15
    )
    (finding,) = verdict.failed
    assert (finding.probe, bool(re.search(reason, finding.reason))) == ("training", True), finding
    assert len(psutil.Process(referee.sandbox.process.pid).children(recursive=True)) == 1  # the server


def test_a_model_beyond_the_limit_of_weights_is_refused_before_training(examine):
    build = "def build(task):\n    return torch.nn.Linear(1 << 11, 1 << 11)\ndef train(*_):\n    pass\n"
    (finding,) = examine(START + build).failed
    assert finding.probe == "preparation" and "where at most 4,194,304 were due" in finding.reason


def test_a_tensor_is_handed_over_with_the_storage_of_its_shape():
    whole = torch.nn.Module()
    whole.register_buffer("view", torch.arange(100_000)[:1])
    assert len(child._state(whole)) < 4000


@pytest.mark.parametrize("name", ["starts processes that start processes", "prints without end"])
@pytest.mark.parametrize("stage", ["preparation", "answers"])
def test_a_hostile_build_or_answer_is_ended_too(name, stage, examine):
    body, reason = HOSTILE[name]
    trap = f"def trap():\n    {body}\n"
    build = "def build(task):\n    trap()\n    return Bigram(task.vocabulary)\n"
    answer = (
        "class Trap(Bigram):\n    def forward(self, tokens):\n        if not self.training: trap()\n"
        "        return super().forward(tokens)\ndef build(task):\n    return Trap(task.vocabulary)\n"
    )
    code = f"{START}{trap}{build if stage == 'preparation' else answer}def train(model, task, shards):\n    pass\n"
    (finding,) = examine(code, prepare_seconds=10, answer_seconds=10).failed
    assert (finding.probe, reason in finding.reason) == (stage, True), finding


BEYOND = [
    *((name, 1, 7) for name in ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity")),
    *(("clone", 1 << flag | 17) for flag in range(17, 31) if 0x7E02_0000 >> flag & 1),
    *(("fcntl", 0, command) for command in (37, 38, 1024, 1026, 1033, 1036, 1038)),  # leases, seals, hints
    *(("madvise", 0, 0, advice) for advice in (12, 14, 20, 21, 25)),
    *(("socket", family, 1) for family in (15, 17, 38, 40, 44)),  # vsock leaves the machine's namespaces
    *(("ioctl", 0, command) for command in (0x6601, 0x660B, 0x9409, 0x5800)),
]


def test_a_session_cannot_call_what_lasts_beyond_it_or_reaches_other_processes(examine):
    column = MACHINES[platform.machine()][1]
    body = (
        "import ctypes\n    libc = ctypes.CDLL(None, use_errno=True)\n"
        "    def refused(*call): return libc.syscall(*call) == -1 and ctypes.get_errno() == 38\n"
        f"    found = [name for name, number in {[(name, of[column]) for name, of in REFUSED.items()]}"
        " if not refused(number, 0, 0, 0, 0, 0, 0)]\n"
        f"    found += [call for call in {[(ALLOWED[name][0][column], *more) for name, *more in BEYOND]}"
        " if not refused(*call, 0, 0, 0)]\n"
        "    os.sched_setaffinity(0, os.sched_getaffinity(0))\n    raise ValueError(f'allowed: {found}')"
    )
    (finding,) = examine(f"{START}def train(model, task, shards):\n    {body}\n").failed
    assert "ValueError: allowed: [] " in finding.reason, finding.reason


def test_a_session_leaves_no_note_for_a_later_one(referee):
    def noted(notes):
        return "".join(
            f"    note({name!r}, lambda: {seen}, lambda: {leave})\n"
            for name, (seen, leave) in notes.items()
            if len(os.sched_getaffinity(0)) > 1 or name != "processors of the first process"  # there is no other number
        )

    ended = "    if found: raise ValueError(f'seen: {found}')\n"
    code = START.replace("def build", f"import fcntl, resource, struct\n{NOTE}def build", 1)
    code = code.replace("    return Big", f"{noted(NOTES)}{ended}    return Big")
    code += f"def train(model, task, shards):\n    fd = {FILES}[0]\n{noted(DATA_NOTES)}{ended}"
    files = {"submission.py": code.encode(), "base.py": Path(__file__).with_name("base.py").read_bytes()}
    for _ in range(2):
        assert len(referee._train(files, "real", Verdict("0" * 64, True)).weights)  # a note raises Violation


NOTE = """found = []
def note(name, seen, leave):
    try:
        if seen(): found.append(name)
    except OSError: pass
    try: leave()
    except OSError: pass
def locked(fd):
    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: return True
    finally: os.close(fd)
"""


def test_files_that_forbid_their_removal_are_removed(examine):
    body = (
        "os.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a/b', 0); os.chmod('a', 0)\n    raise ValueError('planned')"
    )
    for _ in range(2):  # makedirs fails if the folder of the first run remains
        (finding,) = examine(f"{START}def train(model, task, shards):\n    {body}\n").failed
        assert "planned" in finding.reason


def test_a_session_whose_error_nobody_reads_leaves_the_server_its_folder(plain_referee):
    sandbox = plain_referee.sandbox
    reading, writing = os.pipe()
    os.close(reading)
    with sandbox.fork(writing) as connection:
        os.close(writing)
        channel.send(connection, {"kind": "no order"})
        channel.send(connection, {})
        assert channel.receive(connection)[0]["kind"] == "error"
        while any(process.status() != psutil.STATUS_ZOMBIE for process in sandbox._processes()[1]):
            time.sleep(0.01)
    assert sandbox.end()


def test_a_session_sees_no_network_no_other_process_and_no_file_of_the_host(examine, token_files):
    body = (
        "routes = open('/proc/self/net/route').readlines()[1:]\n"
        "    processes = [name for name in os.listdir('/proc') if name.isdigit()]\n"
        "    seen = [name for name in ('VALIDATION', '/etc/passwd', '/home', '/data/real0') if os.path.exists(name)]\n"
        "    capabilities = [line for line in open('/proc/self/status') if line.startswith('CapEff')][0].split()[1]\n"
        "    raise ValueError(f'{routes} {len(processes)} {seen} {int(capabilities, 16)}')"
    )
    (finding,) = examine(f"{START}def train(model, task, shards):\n    {body}\n").failed
    assert "ValueError: [] 1 [] 0 " in finding.reason, finding.reason
    assert (token_files / "validation.npy").exists()
