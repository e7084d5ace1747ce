"""Who died, fell silent, got stuck or failed is named on all ranks, and nobody else; ranks are threads here."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.timedrun.distributed.thread_ranks import Meeting
from timedrun.distributed import heartbeat_channel
from timedrun.distributed.launch_env import STATUS_FILES
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.watchdog import STUCK, Watchdog
from timedrun.errors import DataError, ExitCode, NonFiniteLoss, UsageError
from timedrun.run.run_state import OutOfMemory

pytestmark = pytest.mark.timeout(60)
WAIT: dict[str, Any] = {"__name__": "torch.distributed.fake"}
exec("def wait(lock):\n    lock.acquire()", WAIT)  # as a collective: its innermost line is torch.distributed's


class Played:
    """A rank played by a thread of its own, from which its watch was started."""

    def __init__(self, rank: ProcessGroup, play: Callable[[Watchdog], object], **options: Any) -> None:
        self.ended: list[tuple[str, ExitCode]] = []
        settings = {"every_seconds": 0.1, "silent_seconds": 3.0, "stuck_seconds": 60.0, "environment": {}} | options
        self.watch = Watchdog(rank, lambda *told: self.ended.append(told), **settings)
        self.result: object = None
        self._play = play
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.watch.start()
        self.result = self._play(self.watch)

    def join(self, seconds: float = 20.0) -> None:
        """Its play is over within `seconds`."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"rank {self.watch.ranks.rank} is still playing"

    def wait_for_end(self, seconds: float = 30.0) -> tuple[str, ExitCode]:
        """What `on_end` was told."""
        deadline = time.monotonic() + seconds
        while not self.ended:
            assert time.monotonic() < deadline, "nobody was told anything"
            time.sleep(0.02)
        return self.ended[0]


def silent_peer(rank: ProcessGroup) -> heartbeat_channel.Peer:
    """A rank that has joined and says nothing more."""
    return heartbeat_channel.meet(rank)[0]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_rank_whose_connection_ends_without_a_word_has_died_and_is_told_at_once() -> None:
    rank_0, rank_1 = Meeting(2).ranks()
    caught = threading.Lock()
    caught.acquire()
    first = Played(rank_0, lambda watch: WAIT["wait"](caught))
    other = silent_peer(rank_1)
    other.send({"step": 7, "standing": None})
    time.sleep(0.3)
    began = time.monotonic()
    other.close()
    words, code = first.wait_for_end()
    assert words == "rank 1 died (killed, crashed or out of memory); its last step was 7"
    assert code == ExitCode.RANK_LOST
    assert time.monotonic() - began < 25


@pytest.mark.parametrize("told", [True, False])
def test_how_a_rank_died_is_told_in_its_supervisors_words_where_there_is_one(tmp_path: Path, told: bool) -> None:
    rank_0, rank_1 = Meeting(2).ranks()
    caught = threading.Lock()
    caught.acquire()
    first = Played(rank_0, lambda watch: WAIT["wait"](caught), environment={STATUS_FILES: str(tmp_path)})
    other = silent_peer(rank_1)
    other.send({"step": 7, "standing": None})
    time.sleep(0.3)
    other.close()
    if told:
        time.sleep(0.3)
        (tmp_path / "rank_1.lost").write_text("rank 1 was killed by SIGKILL, last seen at step 7")
    words, _ = first.wait_for_end()
    died = "rank 1 died (killed, crashed or out of memory); its last step was 7"
    assert words == ("rank 1 was killed by SIGKILL, last seen at step 7" if told else died)


def test_a_silent_rank_is_lost_after_the_time_it_is_given() -> None:
    rank_0, rank_1 = Meeting(2).ranks()
    caught = threading.Lock()
    caught.acquire()
    first = Played(rank_0, lambda watch: WAIT["wait"](caught), silent_seconds=1.0)
    other = silent_peer(rank_1)
    words, code = first.wait_for_end()
    assert words == "rank 1 gave no sign of life for 1 s (stopped or cut off); its last step was 0"
    assert code == ExitCode.RANK_LOST
    other.close()


def test_the_others_notice_that_rank_0_has_died() -> None:
    rank_0, rank_1 = Meeting(2).ranks()
    watch_0 = threading.Event()
    done: list[dict[int, heartbeat_channel.Peer]] = []

    def play_0() -> None:
        done.append(heartbeat_channel.meet(rank_0))
        watch_0.wait()
        done[0][1].close()

    threading.Thread(target=play_0, daemon=True).start()
    second = Played(rank_1, lambda watch: time.sleep(30))
    time.sleep(0.3)
    watch_0.set()
    words, code = second.wait_for_end()
    assert words.startswith("rank 0 died")
    assert code == ExitCode.RANK_LOST


def test_an_error_is_every_ranks_reason_with_rank_step_and_words() -> None:
    def fail(watch: Watchdog) -> str:
        watch.at(120)
        return watch.failed(raised(DataError("shard 3 is damaged")))

    def notice(watch: Watchdog) -> str:
        time.sleep(0.5)
        return watch.failed(raised(dist.DistError("Connection closed by peer")))

    ranks = [Played(rank, play) for rank, play in zip(Meeting(3).ranks(), (notice, fail, notice), strict=True)]
    for one in ranks:
        one.join()
        assert one.result == "rank 1, step 120: DataError: shard 3 is damaged"
        assert one.watch.verdict is not None
        assert one.watch.verdict.code == ExitCode.ERROR
        assert one.ended == []


def test_a_rank_that_trains_on_unaware_of_an_error_elsewhere_is_ended() -> None:
    rank_0, rank_1 = Meeting(2).ranks()
    first = Played(rank_0, lambda watch: time.sleep(30))
    Played(rank_1, lambda watch: watch.failed(raised(ValueError("bad"))))
    assert first.wait_for_end() == ("rank 1, step 0: ValueError: bad", ExitCode.ERROR)


def test_a_collective_that_fails_because_a_rank_died_is_told_as_that_death() -> None:
    rank_0, rank_1 = Meeting(2).ranks()

    def notice(watch: Watchdog) -> str:
        time.sleep(0.2)
        return watch.failed(raised(dist.DistError("Connection closed by peer [10.0.0.7]:4711. GLHF")))

    first = Played(rank_0, notice)
    other = silent_peer(rank_1)
    time.sleep(0.5)
    other.close()
    first.join()
    assert first.result == "rank 1 died (killed, crashed or out of memory); its last step was 0"


def test_a_collective_that_fails_for_no_known_reason_is_told_without_addresses() -> None:
    words = raised(dist.DistError("[pair.cc:1] Connection closed by peer [10.0.0.7]:4711. GLHF"))
    ranks = [Played(rank, lambda watch: watch.failed(words)) for rank in Meeting(2).ranks()]
    for one in ranks:
        one.join()
        assert str(one.result).endswith(
            "step 0: a collective failed, and no rank said why: DistError: Connection closed by peer"
        )


def test_an_error_that_all_ranks_raise_alike_is_told_as_it_is() -> None:
    error = raised(NonFiniteLoss("rank 1, step 3: the training loss is nan"))
    ranks = [Played(rank, lambda watch: watch.failed(error)) for rank in Meeting(2).ranks()]
    for one in ranks:
        one.join()
        assert one.result == "NonFiniteLoss: rank 1, step 3: the training loss is nan"


def test_ranks_that_have_left_are_not_lost_however_long_another_goes_on() -> None:
    def leave(watch: Watchdog) -> None:
        watch.stop()

    def stay(watch: Watchdog) -> None:
        time.sleep(2.5)
        watch.stop()

    for first, second in ((leave, stay), (stay, leave)):
        plays = zip(Meeting(2).ranks(), (first, second), strict=True)
        ranks = [Played(rank, play, silent_seconds=0.6) for rank, play in plays]
        for one in ranks:
            one.join()
            assert one.ended == []
            assert one.watch.verdict is None


def idle_and_waiting(stuck_seconds: float, work: Callable[[], object]) -> tuple[Played, Played, threading.Lock]:
    rank_0, rank_1 = Meeting(2).ranks()
    caught = threading.Lock()
    caught.acquire()
    options = {"stuck_seconds": stuck_seconds, "every_seconds": 0.2}
    first = Played(rank_0, lambda watch: WAIT["wait"](caught), **options)

    def play(watch: Watchdog) -> None:
        watch.at(5)
        work()

    return first, Played(rank_1, play, **options), caught


def test_an_idle_rank_that_another_waits_for_in_a_collective_is_stuck_and_its_place_told() -> None:
    first, second, _ = idle_and_waiting(1.5, lambda: time.sleep(40))
    words, code = first.wait_for_end()
    assert words.startswith("rank 1 has done nothing for ")
    assert "while rank 0 waits for it: it is stuck after step 5 in " in words
    assert words.endswith("(<lambda>)")
    assert " in /" not in words  # no place of the machine
    assert code == ExitCode.RANK_LOST
    assert second.wait_for_end()[0] == words


def test_a_rank_that_computes_while_another_waits_is_not_stuck() -> None:
    end = time.monotonic() + 5

    def compute() -> None:
        while time.monotonic() < end:
            torch.ones(200, 200).sum()

    first, second, caught = idle_and_waiting(1.0, compute)
    second.join()
    assert first.ended == second.ended == []
    caught.release()
    first.watch.stop()
    second.watch.stop()


def test_ranks_that_are_all_busy_or_idle_outside_collectives_are_not_stuck() -> None:
    ranks = [Played(rank, lambda watch: time.sleep(4), stuck_seconds=1.0) for rank in Meeting(2).ranks()]
    for one in ranks:
        one.join()
        assert one.ended == []
        one.watch.stop()


def test_a_rank_keeps_its_sign_for_whoever_started_it(tmp_path: Path) -> None:
    alone = ProcessGroup(0, 1, 0, torch.device("cpu"))
    watch = Watchdog(alone, lambda *told: None, every_seconds=0.1, environment={STATUS_FILES: str(tmp_path)}).start()
    watch.at(42)
    sign = tmp_path / "rank_0.json"
    deadline = time.monotonic() + 20
    while not sign.is_file() or json.loads(sign.read_text())["step"] != 42:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert json.loads(sign.read_text())["seconds"] == pytest.approx(time.monotonic(), abs=20)
    assert watch.failed(ValueError("no")) == "ValueError: no"
    assert json.loads(sign.read_text())["words"] == "ValueError: no"
    watch.stop()


def test_seconds_that_are_none_are_refused() -> None:
    for text in ("soon", "0", "nan", "inf"):
        with pytest.raises(UsageError, match="TIMEDRUN_STUCK_SECONDS"):
            Watchdog(Meeting(2).ranks()[0], lambda *told: None, environment={STUCK: text})


class Exhausted(heartbeat_channel.Peer):
    """A connection of a process that is out of memory from now on."""

    def __init__(self, peer: heartbeat_channel.Peer) -> None:
        self.__dict__ = peer.__dict__

    def receive(self) -> list[dict[str, Any]]:
        raise MemoryError


def exhaust(watch: Watchdog) -> None:
    watch.at(3)
    watch._peers = {number: Exhausted(peer) for number, peer in watch._peers.items()}


@pytest.mark.parametrize("broken", [0, 1])
def test_a_rank_whose_watch_runs_out_of_memory_is_named_on_all_and_ends(broken: int) -> None:
    caught = threading.Lock()
    caught.acquire()

    def play(watch: Watchdog) -> None:
        if watch.ranks.rank == broken:
            exhaust(watch)
        WAIT["wait"](caught)

    ranks = [Played(rank, play) for rank in Meeting(2).ranks()]
    words = f"rank {broken}, step 3: the watch of the ranks failed: MemoryError"
    for one in ranks:
        assert one.wait_for_end() == (words, ExitCode.ERROR)


def test_where_the_training_thread_runs_out_of_memory_too_its_words_are_told_and_it_does_not_wait_long() -> None:
    rank_0, rank_1 = Meeting(2).ranks()

    def play(watch: Watchdog) -> str:
        exhaust(watch)
        return watch.failed(raised(OutOfMemory("out of memory at step 3; use a smaller batch")))

    first = Played(rank_0, lambda watch: time.sleep(30))
    second = Played(rank_1, play)
    words = "rank 1, step 3: OutOfMemory: out of memory at step 3; use a smaller batch"
    assert first.wait_for_end() == (words, ExitCode.ERROR)
    second.join(15.0)
    assert second.result == words
    assert second.ended == []


def test_a_rank_that_has_left_is_not_ended_by_its_watch() -> None:
    rank_0, rank_1 = Meeting(2).ranks()

    def play(watch: Watchdog) -> None:
        watch.stop()
        exhaust(watch)
        time.sleep(1)

    first = Played(rank_0, lambda watch: time.sleep(1.5) or watch.stop())  # type: ignore[func-returns-value]
    second = Played(rank_1, play)
    for one in (first, second):
        one.join()
        assert (one.ended, one.watch.verdict) == ([], None)
