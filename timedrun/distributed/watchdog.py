"""Signs of life of all ranks: one that dies, stops, gets stuck or fails is named on every other in bounded time, under
any launcher and whatever collective the others wait in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import torch
import torch.distributed as dist

from mlevents.runlog import ResultFileGone
from timedrun.distributed.collectives_check import WrongCollective
from timedrun.distributed.config_consistency import ConfigMismatch
from timedrun.distributed.failure import Seen, Verdict, judge_standing, last_step
from timedrun.distributed.heartbeat_channel import Peer, meet
from timedrun.distributed.launch_env import STATUS_FILES
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.replica_check import ReplicaDivergence
from timedrun.distributed.stall_detector import WAITING, Observer, Standing, in_module
from timedrun.errors import ExitCode, NonFiniteLoss, RankLost, TimedrunError, UsageError
from timedrun.storage.atomic_file import replace_text

STUCK: Final = "TIMEDRUN_STUCK_SECONDS"
"""Environment: another number than STUCK_SECONDS."""
SILENT_SECONDS: Final = 15.0
"""A rank that gave no sign of life for so long is lost. One whose process ended is known to be at once; this is for one
that is stopped, or cut off by its network."""
STUCK_SECONDS: Final = 15.0
"""A rank that has done nothing at all for so long, while the others wait, is stuck: no time on a CPU or GPU, in none of
its threads and children, and no disk waited for."""
BUSY_SECONDS: Final = 1200.0
"""A rank that works may keep others waiting in a collective for so long: compilation or an evaluation of its own."""
STILL_BEATS: Final = 3
"""A rank whose step has not changed for so many looks at what it is at."""
SYMPTOM_SECONDS: Final = 5.0
"""For so long a rank's failed collective waits for the news of what made it fail."""
AGREED: Final = (NonFiniteLoss, RankLost, ConfigMismatch, WrongCollective, ReplicaDivergence, ResultFileGone)
"""Errors that all ranks raise alike, and that name the rank themselves."""
LOST_SECONDS: Final = 3.0
"""For so long after its last word a rank whose connection ended may be told of by its supervisor."""
GRACE_SECONDS: Final = 3.0
"""For so long a process may go on once it is known why the run ends; then it is ended."""

SPARE_BYTES: Final = 1 << 20
"""Given up where the watch runs out of memory, to tell of it."""


class Watchdog:
    """A thread on each rank that tells rank 0 how far it is and what it is at; rank 0 judges, and tells all.

    A rank is lost when its connection ends without a word or it is silent for `silent_seconds`; the others judge rank 0
    by the same. It is stuck when at least one rank waits in a collective, none that does not wait works, and nothing
    has changed in that for `stuck_seconds`. So nothing that all ranks do, however long, is ever called stuck, nor is a
    rank that computes, compiles, reads or writes by itself while others wait, for up to `busy_seconds`.

    Time passes for the watch only while its thread runs: a machine that was suspended, or a job that was stopped and
    goes on, finds nobody silent.

    ranks: this process's place. With one rank there is nobody to watch; its signs are written if they are asked for.
    on_end: called once, from the watch's thread, with a verdict's words and exit code, where the thread that called
        `start` did not come to `failed` or `stop` within GRACE_SECONDS of it: it is caught in a collective or far from
        one. It has to end the process.
    """

    def __init__(
        self,
        ranks: ProcessGroup,
        on_end: Callable[[str, ExitCode], object],
        *,
        every_seconds: float = 1.0,
        silent_seconds: float = SILENT_SECONDS,
        stuck_seconds: float | None = None,
        busy_seconds: float = BUSY_SECONDS,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises UsageError where TIMEDRUN_STUCK_SECONDS is no number of seconds."""
        self.ranks = ranks
        self.on_end = on_end
        self.every = every_seconds
        self.silent = silent_seconds
        self.stuck = stuck_seconds if stuck_seconds is not None else _stuck_seconds(environment)
        self.busy = busy_seconds
        self.step = 0
        self.verdict: Verdict | None = None
        """Why the run ends, once that is known."""
        self._signs = Path(environment[STATUS_FILES]) if environment.get(STATUS_FILES) else None
        self._changed = threading.Condition()
        self._came = self._leaving = self._left = False
        self._own_failure: tuple[Verdict, bool] | None = None
        self._peers: dict[int, Peer] = {}
        self._seen: dict[int, Seen] = {}
        self._awake = self._beaten = 0.0
        self._thread: threading.Thread | None = None
        self._spare = bytes(SPARE_BYTES)

    def start(self) -> Self:
        """Begin to tell and to look; all ranks call it together, each from the thread that trains.

        Raises:
            RankLost: the ranks do not reach each other.
        """
        if self.ranks.world_size == 1 and self._signs is None:
            return self
        if self.ranks.world_size > 1:
            self._peers = meet(self.ranks)
        self._seen = {rank: Seen() for rank in (*self._peers, self.ranks.rank)}
        self._wake_up, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        for rank, peer in self._peers.items():
            self._selector.register(peer.connection, selectors.EVENT_READ, rank)
        self._observer = Observer(threading.get_ident(), self.ranks.device)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def at(self, step: int) -> None:
        """This rank finished optimizer step `step`. Costs an assignment."""
        self.step = step

    def failed(self, error: BaseException) -> str:
        """Tell the others that this rank ends with `error`, and say what ended the run: the error of the rank that
        failed first, or the rank that was lost, each with its rank and last step; of one rank, this error's own words.

        Returns at once where that is known. An error that a collective raised may be another rank's fault: then, and
        where rank 0 does not answer, it waits for the watch, `silent_seconds` and some at most.
        """
        own = self._verdict_of(error)
        if self._thread is None or self.ranks.world_size == 1 or self._leaving:
            self.verdict = self.verdict or own
            self._write_sign(own.words)
            return self.verdict.words
        with self._changed:
            self._came = True
            self._changed.notify_all()
            if self._own_failure is None:
                self._own_failure = (own, is_symptom(error))
            self._wake()
            self._changed.wait_for(lambda: self.verdict is not None, self.silent + SYMPTOM_SECONDS + GRACE_SECONDS)
            self.verdict = self.verdict or own
            return self.verdict.words

    def stop(self) -> None:
        """Leave: this rank's run is over, and its silence means nothing from now on. The thread goes on to hear of the
        others until they have left too or the process ends."""
        with self._changed:
            self._came = self._leaving = True
            if self._thread is not None and self._thread.is_alive():
                self._wake()
                self._changed.wait_for(lambda: self._left, 2 * self.every)

    def _verdict_of(self, error: BaseException) -> Verdict:
        words = f"{type(error).__name__}: {error}".rstrip(": ")
        if is_symptom(error):  # a library's: long, with addresses and places of the machine it was built on
            first = re.sub(r"\s*\[[^\]]*\](:\d+)?", "", words.splitlines()[0]).split(". ")[0]
            words = f"a collective failed, and no rank said why: {first}"
        if self.ranks.world_size > 1 and not isinstance(error, AGREED):
            words = f"rank {self.ranks.rank}, step {self.step}: {words}"
        code = error.exit_code if isinstance(error, TimedrunError) else ExitCode.ERROR
        return Verdict(words, code, self.ranks.rank)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_up.send(b"!")

    def _run(self) -> None:
        with self._selector, self._woken, self._wake_up:
            try:
                self._look_on()
            except Exception as error:  # out of memory, most likely
                self._break_off(error)

    def _break_off(self, error: Exception) -> None:
        """This rank cannot watch, nor be watched, any more: it ends, and the others are told why."""
        if self._leaving:
            return
        self._spare = b""
        with self._changed:  # a process out of memory fails in more than one place: the trainer's error says more
            self._changed.wait_for(lambda: self._own_failure is not None or self.verdict is not None, 1.0)
            said, symptom = self._own_failure or (None, False)
            words = f"rank {self.ranks.rank}, step {self.step}: the watch of the ranks failed: {type(error).__name__}"
            own = (
                said
                if said and not symptom
                else Verdict(f"{words}: {error}".rstrip(": "), ExitCode.ERROR, self.ranks.rank)
            )
            self.verdict = ended = self.verdict or own
            self._changed.notify_all()
        if self.ranks.is_first:
            self._tell({"ended": ended.words, "code": int(ended.code), "rank": ended.rank})
        else:
            self._tell(_failure_message(ended, False))
        self._write_sign(ended.words)
        with self._changed:
            came = self._changed.wait_for(lambda: self._came, GRACE_SECONDS)
        if not came:
            self.on_end(ended.words, ended.code)

    def _look_on(self) -> None:
        """Until all have left or the run ends."""
        if self.ranks.device.type == "cuda":
            torch.cuda.set_device(self.ranks.device)  # or this thread would open a context on the first GPU
        last, next_beat, deadline, told = time.monotonic(), 0.0, 0.0, False
        while True:
            self._listen(max(0.0, next_beat - self._awake))
            now = time.monotonic()
            self._awake += min(now - last, 2 * self.every)
            last = now
            with self._changed:
                came, leaving, failure = self._came, self._leaving, self._own_failure
            own = self._seen[self.ranks.rank]
            if failure and own.failed is None:
                own.failed, own.symptom = failure
                own.failed_at = self._awake
                if not own.symptom:
                    self._write_sign(failure[0].words)
                self._tell(_failure_message(*failure))
            if leaving and not own.left:
                own.left = True
                self._tell({"left": True})
                with self._changed:
                    self._left = True
                    self._changed.notify_all()
            if self._awake >= next_beat:
                next_beat = self._awake + self.every
                self._beat(own)
            if self.verdict is None and not own.left and (verdict := self._judge()):
                self._settle(verdict)
            if self.verdict is not None:
                deadline = deadline or self._awake + GRACE_SECONDS
                if not told and self.ranks.is_first:
                    told = True
                    ended = self.verdict
                    self._tell({"ended": ended.words, "code": int(ended.code), "rank": ended.rank})
                with self._changed:
                    self._changed.notify_all()
                if came:
                    if own.symptom and own.failed:
                        self._write_sign(self.verdict.words)
                    return
                if self._awake >= deadline:
                    self.on_end(self.verdict.words, self.verdict.code)
                    return
            if own.left and all(peer.ended or self._seen[rank].left for rank, peer in self._peers.items()):
                return

    def _listen(self, seconds: float) -> None:
        for ready, _ in self._selector.select(seconds):
            rank = ready.data
            if rank is None:
                self._woken.recv(4096)
                continue
            peer = self._peers[rank]
            for message in peer.receive():
                self._hear(self._seen[rank], message, rank)
            if peer.ended:
                self._selector.unregister(peer.connection)

    def _hear(self, seen: Seen, message: dict[str, Any], rank: int) -> None:
        seen.heard = self._awake
        if "ended" in message:
            self._settle(Verdict(message["ended"], ExitCode(message["code"]), message["rank"]))
        elif "failed" in message:
            seen.failed = Verdict(message["failed"], ExitCode(message["code"]), rank)
            seen.symptom, seen.failed_at = message["symptom"], self._awake
        elif "left" in message:
            seen.left = True
        else:
            seen.step = message["step"]
            seen.standing = Standing(*message["standing"]) if message["standing"] else None

    def _tell(self, message: dict[str, Any]) -> None:
        for peer in self._peers.values():
            if not peer.ended:
                peer.send(message)

    def _beat(self, own: Seen) -> None:
        """Tell how far this rank is."""
        own.heard = own.heard or self._awake
        if own.step != self.step:
            own.step, own.standing, own.heard = self.step, None, self._awake  # for itself: when it moved last
            self._observer.forget()
        elif self._peers and not own.left and self._awake - own.heard >= STILL_BEATS * self.every:
            own.standing = self._observer.look(self._awake - self._beaten)
        self._beaten = self._awake
        standing = own.standing
        told = [standing.state, standing.quiet_seconds, standing.where] if standing else None
        self._tell({"step": self.step, "standing": told})
        if own.failed is None:
            self._write_sign()

    def _judge(self) -> Verdict | None:
        """Why the run has to end, if it has to."""
        if not self._peers:
            return None
        seen = self._seen
        for one in seen.values() if self.ranks.is_first else ():
            if one.failed and not one.symptom:
                return one.failed
        for rank, peer in self._peers.items():
            one = seen[rank]
            last = f"its last step was {last_step(one, self.step)}"
            if one.left or one.failed:
                continue
            if peer.ended:
                # Its supervisor, if it has one here, knows how, a moment later.
                told = self._lost_words(rank)
                if told is None and self._signs is not None and self._awake - one.heard < LOST_SECONDS:
                    continue
                words = told or f"rank {rank} died (killed, crashed or out of memory); {last}"
                return Verdict(words, ExitCode.RANK_LOST, rank)
            if self._awake - one.heard > self.silent:
                words = f"rank {rank} gave no sign of life for {self.silent:.0f} s (stopped or cut off); {last}"
                return Verdict(words, ExitCode.RANK_LOST, rank)
        own = seen[self.ranks.rank]
        if not self.ranks.is_first:  # rank 0 judges all else, as long as it is there
            gone = seen[0].left or self._peers[0].ended
            return own.failed if gone else None
        symptoms = [one for one in seen.values() if one.failed]
        if symptoms:
            first = min(symptoms, key=lambda one: one.failed_at)
            return first.failed if self._awake - first.failed_at > SYMPTOM_SECONDS else None
        running = {rank: one for rank, one in seen.items() if not one.left}
        return judge_standing(running, self.step, self.stuck, self.busy)

    def _lost_words(self, rank: int) -> str | None:
        """What this node's supervisor wrote of a rank that it lost."""
        try:
            return (self._signs / f"rank_{rank}.lost").read_text() if self._signs is not None else None
        except OSError:
            return None

    def _settle(self, verdict: Verdict) -> None:
        with self._changed:
            self.verdict = self.verdict or verdict

    def _write_sign(self, words: str | None = None) -> None:
        if self._signs is None:
            return
        path = self._signs / f"rank_{self.ranks.rank}.json"
        sign = {"step": self.step, "seconds": time.monotonic()} | ({"words": words} if words else {})
        with contextlib.suppress(OSError):  # the folder is its starter's, who may be gone
            replace_text(path, json.dumps(sign), f".{threading.get_ident()}.draft")


def is_symptom(error: BaseException) -> bool:
    """Whether `error` came out of a collective or a backward pass, so that another rank may have caused it."""
    if isinstance(error, dist.DistError):
        return True
    if type(error) is not RuntimeError or error.__traceback__ is None:
        return False
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return in_module(traceback.tb_frame, WAITING)


def _failure_message(verdict: Verdict, symptom: bool) -> dict[str, Any]:
    return {"failed": verdict.words, "code": int(verdict.code), "symptom": symptom}


def _stuck_seconds(environment: Mapping[str, str]) -> float:
    text = environment.get(STUCK)
    if not text:
        return STUCK_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < float("inf"):
        raise UsageError(f"{STUCK}={text!r} is not a number of seconds of at least 1.")
    return seconds
