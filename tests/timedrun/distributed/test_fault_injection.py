"""Fault injection: parsing, and the failure that two real ranks log for each fault."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mlevents import keys, record
from timedrun.distributed.fault_injection import VARIABLE, Fault
from timedrun.distributed.launch_env import LaunchEnv
from timedrun.errors import ExitCode, UsageError

PROMISED_SECONDS = 30.0


@pytest.mark.parametrize("text", ["1:2", "1:2:sulk", "-1:2:kill", "1:x:kill", "1:2:kill:3", "a"])
def test_an_invalid_fault_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="RANK:STEP:HOW"):
        Fault.from_environment(2, {VARIABLE: text})
    assert Fault.from_environment(2, {}) is None


def test_a_fault_of_a_rank_outside_the_run_is_refused() -> None:
    assert Fault.from_environment(2, {VARIABLE: "1:2:kill"}) == Fault(1, 2, "kill")
    with pytest.raises(UsageError, match="rank 2; the run has 2 ranks"):
        Fault.from_environment(2, {VARIABLE: "2:2:kill"})


def test_a_fault_is_injected_at_its_rank_and_step_only() -> None:
    loss = torch.tensor(1.0)
    fault = Fault(1, 5, "raise")
    for rank, step in ((0, 5), (1, 4), (1, 6)):
        assert fault.inject(rank, step, loss) is loss
    with pytest.raises(RuntimeError, match=VARIABLE):
        fault.inject(1, 5, loss)


def test_the_loss_stays_nan_from_the_step_of_the_fault() -> None:
    fault = Fault(0, 5, "nan")
    lost = [bool(fault.inject(0, step, torch.tensor(1.0)).isnan()) for step in (4, 5, 6)]
    assert lost == [False, True, True]


@dataclass
class Ended:
    """The results of two ranks."""

    log: record.RunRecord
    codes: tuple[int, int]
    printed: str

    @property
    def reason(self) -> str:
        assert self.log.stopped is not None
        return str(self.log.stopped.metadata["reason"])

    @property
    def seconds_to_the_end(self) -> float:
        """From the last event before run_stop."""
        before, last = self.log.events[-2:]
        return (last.time_ms - before.time_ms) / 1e3


CASES = {
    "stop": (),
    "hang": ("--schedule.epochs", "100"),
    "kill": (),
    "nan": (),
    "raise": (),
    "slow": ("--schedule.epochs", "10"),
    "abort": ("--schedule.epochs", "2"),
}


def run_two_ranks(folder: Path, how: str) -> Ended:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "printed.txt").open("w") as printed:
        ranks = []
        for rank in (0, 1):
            variables = LaunchEnv("torchrun", rank, 2, rank, 2, "127.0.0.1", port).variables()
            variables |= {"OMP_NUM_THREADS": "1", VARIABLE: f"1:12:{how}"}
            command = [sys.executable, "-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic"]
            command += ["--results", str(folder), "--number", "0", "--evaluation.target", "0.999"]
            command += CASES[how] or ("--schedule.epochs", "400")
            ranks.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **variables},
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        try:
            codes = [ranks[0].wait(100), 0]
            if how == "stop":
                os.killpg(ranks[1].pid, signal.SIGKILL)
            codes[1] = ranks[1].wait(30)
        finally:
            for one in ranks:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
                    one.wait()
    return Ended(record.read(folder / "result_0.txt"), (codes[0], codes[1]), (folder / "printed.txt").read_text())


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    """Every case once, three at a time: the first two mostly wait."""
    folders = [tmp_path_factory.mktemp(how) for how in CASES]  # here: the factory is not made for threads
    with ThreadPoolExecutor(3) as pool:
        yield dict(zip(CASES, pool.map(run_two_ranks, folders, CASES), strict=True))


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("how", "reason", "code"),
    [
        ("kill", "rank 1 died: killed, crashed or out of memory (last step 1", ExitCode.RANK_LOST),
        (
            "stop",
            "no heartbeat from rank 1 for 15 s (last step 12); run aborted; resume with --resume",
            ExitCode.RANK_LOST,
        ),
        ("nan", "NonFiniteLoss: rank 1, step ", ExitCode.ERROR),
        ("raise", "rank 1, step 12: RuntimeError: injected by TIMEDRUN_FAIL", ExitCode.ERROR),
    ],
)
def test_the_failure_of_rank_1_is_the_logs_reason_within_the_promised_time(
    ended: dict[str, Ended], how: str, reason: str, code: ExitCode
) -> None:
    one = ended[how]
    assert one.reason.startswith(reason)
    assert one.codes[0] == code
    assert one.seconds_to_the_end < PROMISED_SECONDS
    assert ("Traceback" in one.printed) == (how == "raise")  # rank 1's own: an unexpected exception
    assert reason.split(": ")[-1] in one.printed


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_rank_that_hangs_is_named_with_the_line_it_hangs_at_and_both_end(ended: dict[str, Ended]) -> None:
    one = ended["hang"]
    assert one.reason.startswith("rank 1 hung after step 12 at timedrun/distributed/fault_injection.py:")
    assert one.reason.endswith(" s while rank 0 waits for it; run aborted; resume with --resume")
    assert one.codes == (ExitCode.RANK_LOST, ExitCode.RANK_LOST)
    assert one.seconds_to_the_end < PROMISED_SECONDS


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_slow_rank_is_named_and_the_run_goes_on(ended: dict[str, Ended]) -> None:
    one = ended["slow"]
    events = [event for event in one.log.events if event.key == keys.SLOW_RANK]
    named = [(event.value, event.metadata["part"]) for event in events]
    assert (1, "loading") in named  # other stragglers may be the machine's
    slow = events[named.index((1, "loading"))]
    assert slow.metadata["seconds"] > 0.2
    assert slow.metadata["seconds"] > 1.5 * slow.metadata["median_seconds"]
    assert one.reason == "target not reached"


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_a_rank_that_aborts_after_the_run_changes_nothing_in_the_log(ended: dict[str, Ended]) -> None:
    one = ended["abort"]
    assert one.reason == "target not reached"
    assert one.codes == (ExitCode.TARGET_NOT_REACHED, -signal.SIGABRT)


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_every_log_has_the_fault_and_the_collectives_check(ended: dict[str, Ended]) -> None:
    for how, one in ended.items():
        (fault,) = [event for event in one.log.events if event.key == keys.FAULT]
        assert fault.value == {"rank": 1, "step": 12, "kind": how}
        (test,) = [event for event in one.log.events if event.key == keys.COLLECTIVE_TEST]
        assert test.value["ranks"] == 2
        assert test.value["bytes_per_second"] > 0
