"""Watchdog: name a rank that died, hangs, is unreachable or failed on every other rank in bounded time, under any
launcher and in whatever collective the others wait."""

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

import torch

from judging.ground.errors import ExitCode, UsageError
from timedrun.runner.distributed.failure import RankStatus, RunFailure, failure_of, find_stalled, is_symptom
from timedrun.runner.distributed.heartbeat_channel import Connection, connect
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.distributed.stall_detector import ActivityProbe, ThreadActivity
from timedrun.runner.process.status_files import ABORTED

STUCK: Final = "TIMEDRUN_STUCK_SECONDS"
"""Variable that overrides STUCK_SECONDS."""
HEARTBEAT_INTERVAL: Final = 1.0
HEARTBEAT_TIMEOUT: Final = 15.0
"""Seconds without a heartbeat after which a rank is unreachable. A process that ended is noticed at once."""
STUCK_SECONDS: Final = 15.0
"""Idle time after which a rank hangs if others wait for it. Idle: none of its threads and children uses a CPU or GPU
or waits for a disk."""
BUSY_SECONDS: Final = 1200.0
"""Limit for a rank that works while others wait in a collective: a compilation, or an evaluation of its own."""
POLL_SECONDS: Final = 0.1
"""Limit of a wait for messages, after which the thread sees what the training thread reports."""
RANKS_A_SECOND: Final = 10_000
"""Ranks that rank 0 checks in a second at most: each look is at all, and heartbeats would wake it for each."""
STILL_INTERVALS: Final = 3
"""Heartbeat intervals without a step after which a rank's activity is sampled."""
SYMPTOM_SECONDS: Final = 5.0
"""Time that a failed collective waits for the report of its cause."""
GRACE_SECONDS: Final = 3.0
"""Time from a known failure to the end of this process."""


class Watchdog:
    """A thread on each rank that sends its step and activity to rank 0, which finds failures and tells all ranks.

    A rank has died when its connection closes unannounced, and is unreachable without a heartbeat for
    HEARTBEAT_TIMEOUT. A rank hangs when at least one rank waits in a collective and all that do not are idle, for
    STUCK_SECONDS, or work for BUSY_SECONDS.

    Timeouts count only time during which this thread runs, so a resumed machine or job raises no false alarm. With one
    rank there is no thread.

    on_end: called once, from the watchdog's thread, with a failure's message and exit code, if the thread that called
        `start` does not call `failed` or `stop` within GRACE_SECONDS, because it is blocked; it has to end the process.

    Raises UsageError if TIMEDRUN_STUCK_SECONDS is not a number of seconds of at least 1.
    """

    def __init__(
        self,
        ranks: ProcessGroup,
        on_end: Callable[[str, ExitCode], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ranks = ranks
        self.on_end = on_end
        self.stuck = _stuck_seconds()
        self.step = 0
        self.failure: RunFailure | None = None
        """Reason why the run ends, once known."""
        self._clock = clock
        self._changed = threading.Condition()
        self._returned = False  # the training thread has called `failed` or `stop`
        self._stopping = False  # it has called `stop`
        self._own_failure: tuple[RunFailure, bool] | None = None
        self._thread: threading.Thread | None = None
        self._connections: dict[int, Connection] = {}

    def start(self) -> Self:
        """Start the thread; all ranks call this together, each from its training thread. Raises RankLost if ranks do
        not reach each other."""
        if self.ranks.world_size > 1:
            self.open(connect(self.ranks), ActivityProbe(threading.get_ident(), self.ranks.device))
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def open(self, connections: dict[int, Connection], probe: ActivityProbe) -> Self:
        """Set up without a thread: the caller calls `tick`."""
        self._connections, self._probe = connections, probe
        self._status = {rank: RankStatus() for rank in (*connections, self.ranks.rank)}
        self._awake = self._sampled = self._next_heartbeat = self._deadline = 0.0
        self._last_tick = self._clock()
        self._selector = selectors.DefaultSelector()
        for rank, connection in connections.items():
            self._selector.register(connection.socket, selectors.EVENT_READ, rank)
        return self

    def at(self, step: int) -> None:
        """Record that this rank finished optimizer step `step`. Costs one assignment."""
        self.step = step

    def failed(self, error: BaseException) -> str:
        """Report that this rank ends with `error`; return the reason why the run ends: the failure of the rank that
        failed first, with its rank and last step; with one rank, the error.

        A collective's error may be another rank's fault: then, and if rank 0 does not answer, this waits for the
        watchdog, HEARTBEAT_TIMEOUT + SYMPTOM_SECONDS + GRACE_SECONDS at most.
        """
        own = failure_of(error, self.ranks, self.step)
        if not self._connections or self._stopping:
            self.failure = self.failure or own
            return self.failure.message
        with self._changed:
            self._returned = True
            self._changed.notify_all()
            self._own_failure = self._own_failure or (own, is_symptom(error))
            self._changed.wait_for(
                lambda: self.failure is not None, HEARTBEAT_TIMEOUT + SYMPTOM_SECONDS + GRACE_SECONDS
            )
            self.failure = self.failure or own
            return self.failure.message

    def stop(self) -> None:
        """Report that this rank's run is over: its silence is no failure. The thread stays until all have left."""
        with self._changed:
            self._returned = self._stopping = True
            if self._thread is not None and self._thread.is_alive():
                self._changed.wait_for(lambda: self._status[self.ranks.rank].left, 2 * HEARTBEAT_INTERVAL)

    def tick(self, wait_seconds: float = 0.0) -> bool:
        """Receive for up to `wait_seconds`, send and decide once; return True when the watchdog is done."""
        self._receive(wait_seconds)
        now = self._clock()
        self._awake += min(now - self._last_tick, 2 * HEARTBEAT_INTERVAL)
        self._last_tick = now
        own = self._status[self.ranks.rank]
        with self._changed:
            failure, returned, stopping = self._own_failure, self._returned, self._stopping
        if failure and own.failure is None:
            (own.failure, own.symptom), own.failed_at = failure, self._awake
            self._send({"failed": failure[0], "symptom": failure[1]})
        if stopping and not own.left:
            self._send({"left": True})
            with self._changed:
                own.left = True
                self._changed.notify_all()
        if self._awake >= self._next_heartbeat:
            self._next_heartbeat = self._awake + HEARTBEAT_INTERVAL
            self._send_heartbeat(own)
        if self.failure is None and not own.left:
            self.failure = self._find_failure()
        if self.failure is None:
            return own.left and all(link.ended or self._status[rank].left for rank, link in self._connections.items())
        if not self._deadline:
            self._deadline = self._awake + GRACE_SECONDS
            if self.ranks.is_first:
                self._send({"ended": self.failure})
            with self._changed:  # only now: `failed` returns, and the process may end
                self._changed.notify_all()
        if not returned and self._awake >= self._deadline:
            self.on_end(self.failure.message, self.failure.exit_code)
            return True
        return returned

    def _run(self) -> None:
        if self.ranks.device.type == "cuda":
            torch.cuda.set_device(self.ranks.device)  # else this thread would open a context on the first GPU
        with self._selector:
            while not self.tick(POLL_SECONDS):
                time.sleep(len(self._connections) / RANKS_A_SECOND)

    def _receive(self, seconds: float) -> None:
        for ready, _ in self._selector.select(seconds):
            rank = ready.data
            connection = self._connections[rank]
            for message in connection.receive():
                self._handle(self._status[rank], message)
            if connection.ended:
                self._selector.unregister(connection.socket)

    def _handle(self, status: RankStatus, message: dict[str, Any]) -> None:
        status.heard = self._awake
        if "ended" in message:
            self.failure = self.failure or RunFailure(*message["ended"])
        elif "failed" in message:
            status.failure, status.symptom = RunFailure(*message["failed"]), message["symptom"]
            status.failed_at = self._awake
        elif "left" in message:
            status.left = True
        else:
            status.step = message["step"]
            status.activity = ThreadActivity(*message["activity"]) if message["activity"] else None

    def _send(self, message: dict[str, Any]) -> None:
        for connection in self._connections.values():
            if not connection.ended:
                connection.send(message)

    def _send_heartbeat(self, own: RankStatus) -> None:
        own.heard = own.heard or self._awake
        if own.step != self.step:
            own.step, own.activity, own.heard = self.step, None, self._awake
            self._probe.reset()
        elif self._connections and not own.left and self._awake - own.heard >= STILL_INTERVALS * HEARTBEAT_INTERVAL:
            own.activity = self._probe.sample(self._awake - self._sampled)
        self._sampled = self._awake
        self._send({"step": self.step, "activity": own.activity})

    def _find_failure(self) -> RunFailure | None:
        if not self._connections:
            return None
        status = self._status
        for known in status.values() if self.ranks.is_first else ():
            if known.failure and not known.symptom:
                return known.failure
        for rank, connection in self._connections.items():
            other = status[rank]
            if other.left or other.failure:
                continue
            last = f"(last step {max(other.step, self.step)}){ABORTED}"
            if connection.ended:
                return RunFailure(f"rank {rank} died: killed, crashed or out of memory {last}", ExitCode.RANK_LOST)
            if self._awake - other.heard > HEARTBEAT_TIMEOUT:
                message = f"no heartbeat from rank {rank} for {HEARTBEAT_TIMEOUT:.0f} s {last}"
                return RunFailure(message, ExitCode.RANK_LOST)
        own = status[self.ranks.rank]
        if not self.ranks.is_first:  # rank 0 decides everything else as long as it runs
            return own.failure if status[0].left or self._connections[0].ended else None
        symptoms = [known for known in status.values() if known.failure]
        if symptoms:
            first = min(symptoms, key=lambda known: known.failed_at)
            return first.failure if self._awake - first.failed_at > SYMPTOM_SECONDS else None
        running = {rank: known for rank, known in status.items() if not known.left}
        return find_stalled(running, self.step, self.stuck, BUSY_SECONDS)


def _stuck_seconds() -> float:
    text = os.environ.get(STUCK) or str(STUCK_SECONDS)
    with contextlib.suppress(ValueError):
        if 1 <= (seconds := float(text)) < float("inf"):
            return seconds
    raise UsageError(f"{STUCK}={text!r} is not a number of seconds of at least 1.")
