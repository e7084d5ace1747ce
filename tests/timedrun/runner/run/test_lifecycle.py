"""The life of a run in real processes: each way in which ranks, launchers and nodes end, and what goes on after."""

import ctypes
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from judging.ground.errors import ExitCode
from mlevents import keys, record
from tests.forked_python import environment_of
from tests.timedrun.runner.distributed.launched_ranks import free_port, until
from timedrun.runner.process.launch_env import LaunchEnv

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SMOKE = ("run", "image_classification", "smoke", "--data", "synthetic")
TIMEDRUN = ("-m", "timedrun")
FAULTY_RANK = str(Path(__file__).with_name("faulty_rank.py"))
LONG = ("--schedule.epochs", "4000", "--evaluation.target", "0.999")
PROMISED_MS = 30_000


class Processes:
    """The processes of one run in a folder: those that were started, and all that these start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: dict[Path, subprocess.Popen[bytes]] = {}
        """By the file with the output."""

    def start(
        self, *words: object, program: tuple[str, ...] = TIMEDRUN, network: str | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start `python *program run smoke *words`; the results go to `results` unless the words name a folder."""
        command = [sys.executable, *program, *SMOKE, "--results", self.folder / "results", *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), "GLOO_SOCKET_IFNAME": ""}
        enter = functools.partial(enter_network, network) if network else None
        path = self.folder / f"output_{len(self.started)}"
        with path.open("wb") as output:
            self.started[path] = subprocess.Popen(
                [*map(str, command)], env=environment | variables, stdout=output, stderr=output, preexec_fn=enter
            )
        return self.started[path]

    def end(self, seconds: float = 120) -> tuple[list[int], list[str]]:
        """The exit codes and the output of the processes that were started; no other process nor temporary folder may
        be left."""
        codes = [process.wait(timeout=seconds) for process in self.started.values()]
        until(lambda: not self.left(), 5)
        assert not [*self.folder.glob("timedrun-*")]
        return codes, [path.read_text() for path in self.started]

    def left(self) -> list[psutil.Process]:
        """The processes that still run."""
        items = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                mine = environment_of(process).get("TMPDIR") == str(self.folder)
                items += [process] if mine and process.status() != psutil.STATUS_ZOMBIE else []
        return items

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank, once there is one."""
        return until(lambda: [one for one in self.left() if environment_of(one).get("RANK") == str(number)], 60)[0]

    def kill(self) -> None:
        for process in [*self.started.values(), *self.left()]:
            with suppress(psutil.Error):
                process.kill()
        for started in self.started.values():
            started.wait(timeout=30)

    def log(self, number: int = 0) -> record.RunRecord:
        return record.read(self.folder / "results" / f"result_{number}.txt")

    def course(self, count: int) -> list[object]:
        """The first `count` evaluations of the log; none if they are fewer."""
        path = self.folder / "results" / "result_0.txt"
        values = [event.value for event in record.read(path).all(keys.EVAL_ACCURACY)] if path.is_file() else []
        return values[:count] if len(values) >= count else []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.kill()


Ended = tuple[record.RunRecord, list[int], str]
"""Log, exit codes and output of two ranks."""
FAILED = [ExitCode.ERROR, ExitCode.ERROR]
FAULTS = {  # fault: reason in the log, exit codes; those that mostly wait come first
    "stop": (r"no heartbeat from rank 1 for 3 s \(last step 12\); run aborted", [ExitCode.RANK_LOST, -9]),
    "hang": (
        r"rank 1 hung after step 12 at .*faulty_rank.py:\d+ \(inject\):"
        r" idle for \d+ s while rank 0 waits for it; run aborted",
        [ExitCode.RANK_LOST, ExitCode.RANK_LOST],
    ),
    "nan": ("NonFiniteLoss: rank 1, step 1[2-9]: .*", FAILED),
    "raise": ("rank 1, step 12: RuntimeError: raised on purpose", FAILED),
}


def start_two_ranks(
    run: Processes, *options: object, fault: str = "none", to: str = "results", networks: Sequence[str] = ()
) -> None:
    """Start two ranks, of which the second may have a fault, as a launcher would that sets torchrun's variables; with
    `networks`, each on a node of its own."""
    port = free_port()
    for rank, how in enumerate(("none", fault)):
        env = LaunchEnv("rank", rank, 2, rank, 2, "127.0.0.1", port)
        if networks:
            env = LaunchEnv("rank", rank, 2, 0, 1, "10.213.77.1", port)
        words = (*options, "--results", run.folder / to / "result_0.txt")
        network = networks[rank] if networks else None
        run.start(*words, program=(FAULTY_RANK, f"12:{how}"), network=network, **env.variables())


def run_two_ranks(folder: Path, how: str) -> Ended:
    run = Processes(folder)
    try:
        start_two_ranks(run, "--schedule.epochs", 400, "--evaluation.target", 0.999, fault=how)
        first, second = run.started.values()
        first.wait(100)
        if how == "stop":
            second.kill()
        codes, printed = run.end(30)
    finally:
        run.kill()
    return run.log(), codes, "".join(printed)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Ended]]]:
    """Every fault once, two at a time; a test waits for its own."""
    folders = [tmp_path_factory.mktemp(how) for how in FAULTS]  # here: the factory is not made for threads
    with ThreadPoolExecutor(2) as pool:
        yield {how: pool.submit(run_two_ranks, folder, how) for folder, how in zip(folders, FAULTS, strict=True)}


@pytest.mark.parametrize("how", FAULTS)
def test_the_failure_of_rank_1_is_the_logs_reason_within_the_promised_time(ends, how):
    log, codes, printed = ends[how].result()
    reason = log.stopped.metadata["reason"]
    assert re.fullmatch(FAULTS[how][0], reason)
    assert codes == FAULTS[how][1]
    assert log.stopped.time_ms - log.events[-2].time_ms < PROMISED_MS
    assert reason.split(": ")[-1] in printed
    assert ("Traceback" in printed) == (how == "raise")  # rank 1's own: an unexpected exception


def test_sigterm_to_one_rank_stops_all_at_one_step_with_75_and_the_resumed_run_is_the_one_never_stopped(run):
    options = ("--schedule.epochs", 6, "--evaluation.target", 0.999)
    start_two_ranks(run, *options, to="whole")  # at the same time: most of it is waiting
    start_two_ranks(run, *options)
    until(lambda: run.course(1), 60)
    [*run.started.values()][-1].send_signal(signal.SIGTERM)
    assert run.end()[0] == [3, 3, 75, 75]
    steps = [{path.name for path in (run.folder / "results/run_0/checkpoint").glob(f"rank_{r}/*.pt")} for r in (0, 1)]
    assert len(steps[0]) == 1 and steps[0] == steps[1] and run.log().status == keys.ABORTED
    start_two_ranks(run, *options, "--resume")
    codes, outputs = run.end()
    assert codes[4:] == [3, 3], outputs
    whole = record.read(run.folder / "whole" / "result_0.txt").quality
    assert [point.value for point in run.log().quality] == [point.value for point in whole] and len(whole) == 6


def test_a_second_signal_ends_a_run_at_once_with_a_whole_log_and_leaves_no_process(run):
    wrapper = run.start(*LONG, "--checkpoint-minutes", 10, PET_MAX_RESTARTS="1")  # which starts a rank
    until(lambda: run.course(1), 60)
    # Suspended, it gets both before the first can stop the run.
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        wrapper.send_signal(number)
    codes, (output,) = run.end(20)
    assert codes[0] in (130, 143)  # whichever of the two Python handles first
    assert "run aborted: ended by a second signal" in output
    assert run.log().stopped.metadata["reason"] == "ended by a second signal"


def enter_network(name: str) -> None:
    """Move this process to the network namespace `name` (setns(2))."""
    with open(f"/run/netns/{name}") as namespace:
        assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30)


@pytest.fixture
def networks() -> Iterator[tuple[str, str]]:
    """Two network namespaces with one link between them, which root can create; node 0 has the address 10.213.77.1."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root on Linux and the ip command (Debian: iproute2)")
    first, second = f"timedrun-{os.getpid()}-0", f"timedrun-{os.getpid()}-1"
    steps = f"""netns add {first}
        netns add {second}
        link add link0 netns {first} type veth peer name link1 netns {second}"""
    for node, name in enumerate((first, second)):
        steps += f"""
        -n {name} address add 10.213.77.{node + 1}/30 dev link{node}
        -n {name} link set link{node} up
        -n {name} link set lo up"""
    try:
        for step in steps.splitlines():
            if (done := ip(*step.split())).returncode != 0:
                pytest.skip(f"no network namespaces here: ip {step}: {done.stderr.strip()}")
        yield first, second
    finally:
        for name in (first, second):
            ip("netns", "delete", name)


def test_a_cut_link_is_reported_on_both_nodes_in_time(run, networks):
    start_two_ranks(run, *LONG, networks=networks)
    until(lambda: run.course(1), 120)
    assert ip("-n", networks[0], "link", "set", "link0", "down").returncode == 0
    codes, outputs = run.end(30)
    assert codes == [ExitCode.RANK_LOST] * 2, outputs
    reason = run.log().stopped.metadata["reason"]
    assert re.fullmatch(r"no heartbeat from rank 1 for 3 s \(last step \d+\); run aborted", reason)
    assert "rank 1" in outputs[0] and "rank 0" in outputs[1]


def test_after_a_lost_rank_both_nodes_resume_the_run_with_the_number_of_rank_0(run):
    for name in ("results/run_0", "results_1/run_0", "results_1/run_6"):
        (run.folder / name).mkdir(parents=True)
    options = ["--schedule.epochs", 6, "--evaluation.target", 0.9999, "--evaluation.every", 3]
    options += ["--checkpoint-minutes", 0.0001]
    nodes = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())}
    for node, results in enumerate(("results", "results_1")):
        given = nodes | {"PET_NODE_RANK": str(node), "PET_MAX_RESTARTS": "1"}
        run.start(*options, "--results", run.folder / results, **given)
    saved = [f"results{'_1' * rank}/run_*/checkpoint/rank_{rank}/*.pt" for rank in range(2)]
    # Without a checkpoint its node does not restart.
    until(lambda: all(list(run.folder.glob(pattern)) for pattern in saved), 120)
    run.rank(1).kill()
    codes, outputs = run.end()
    assert codes == [ExitCode.TARGET_NOT_REACHED] * 2, outputs
    assert all("restart 1 of 1: all ranks resume from step" in words for words in outputs)
    assert len(run.log(1).all(keys.RESUMED)) == 1
    assert [event.metadata["epoch_num"] for event in run.log(1).all(keys.EVAL_ACCURACY)] == [1, 4, 6]
    checkpoint = run.folder / "results_1" / "run_1" / "checkpoint"
    assert {path.name for path in checkpoint.iterdir()} == {"rank_1", "replicated_1"}
