"""The failure that two real ranks log for each fault of one of them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from judging.ground.errors import ExitCode
from mlevents import keys, record
from tests.timedrun.distributed.launched_ranks import free_port
from timedrun.distributed.launch_env import LaunchEnv

PROMISED_MS = 30_000
FAULTY_RANK = Path(__file__).with_name("faulty_rank.py")


Ended = tuple[record.RunRecord, list[int], str]
"""Log, exit codes and output of two ranks."""
Ends = dict[str, Future[Ended]]
LOST = ExitCode.RANK_LOST
NOT_REACHED = ExitCode.TARGET_NOT_REACHED
CASES = {  # fault: epochs of the run, reason in the log, exit codes; those that mostly wait come first
    "stop": (400, r"no heartbeat from rank 1 for 15 s \(last step 12\); run aborted", [LOST, -9]),
    "hang": (
        100,
        r"rank 1 hung after step 12 at .*faulty_rank.py:\d+ \(inject\):"
        r" idle for \d+ s while rank 0 waits for it; run aborted",
        [LOST, LOST],
    ),
    # A death is noticed at once, maybe before rank 0 has counted the step.
    "kill": (400, r"rank 1 died: killed, crashed or out of memory \(last step 1[12]\); run aborted", [LOST, -9]),
    "nan": (400, "NonFiniteLoss: rank 1, step 1[2-9]: .*", [ExitCode.ERROR, ExitCode.ERROR]),
    "raise": (400, "rank 1, step 12: RuntimeError: raised on purpose", [ExitCode.ERROR, ExitCode.ERROR]),
    "slow": (10, "target not reached", [NOT_REACHED, NOT_REACHED]),
    "abort": (2, "target not reached", [NOT_REACHED, -signal.SIGABRT]),
}


def run_two_ranks(folder: Path, how: str) -> Ended:
    port = free_port()
    command = ["run", "image_classification", "smoke", "--data", "synthetic"]
    command += ["--results", str(folder), "--number", "0", "--evaluation.target", "0.999"]
    command += ["--schedule.epochs", str(CASES[how][0])]
    ranks = []
    with (folder / "printed.txt").open("w") as printed:
        for rank in (0, 1):
            variables = LaunchEnv("rank", rank, 2, rank, 2, "127.0.0.1", port).variables()
            program = [str(FAULTY_RANK), f"12:{how}"] if rank == 1 else ["-m", "timedrun"]
            environment = os.environ | variables | {"OMP_NUM_THREADS": "1"}
            ranks.append(
                subprocess.Popen([sys.executable, *program, *command], env=environment, stdout=printed, stderr=printed)
            )
        try:
            codes = [ranks[0].wait(100), 0]
            if how == "stop":
                ranks[1].kill()
            codes[1] = ranks[1].wait(30)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    return record.read(folder / "result_0.txt"), codes, (folder / "printed.txt").read_text()


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    """Every case once, two at a time; a test waits for its own."""
    folders = [tmp_path_factory.mktemp(how) for how in CASES]  # here: the factory is not made for threads
    with ThreadPoolExecutor(2) as pool:
        yield {how: pool.submit(run_two_ranks, folder, how) for folder, how in zip(folders, CASES, strict=True)}


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", CASES)
def test_the_failure_of_rank_1_is_the_logs_reason_within_the_promised_time(ends, how):
    log, codes, printed = ends[how].result()
    assert log.stopped is not None
    reason = log.stopped.metadata["reason"]
    assert re.fullmatch(CASES[how][1], reason)
    assert codes == CASES[how][2]
    assert log.stopped.time_ms - log.events[-2].time_ms < PROMISED_MS
    assert reason.split(": ")[-1] in printed
    assert ("Traceback" in printed) == (how == "raise")  # rank 1's own: an unexpected exception
    (test,) = log.all(keys.COLLECTIVE_TEST)
    assert test.value["ranks"] == 2 and test.value["bytes_per_second"] > 0
    if how == "slow":  # and named, and the run goes on; other stragglers may be the machine's
        slow = {(event.value, event.metadata["part"]): event.metadata for event in log.all(keys.SLOW_RANK)}
        assert slow[1, "loading"]["seconds"] > max(0.2, 1.5 * slow[1, "loading"]["median_seconds"])
