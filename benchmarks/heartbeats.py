"""Measure the watchdog of rank 0 with the heartbeats of many ranks, which a few processes of this machine send.

Usage: python -m benchmarks.heartbeats RANKS SECONDS, in a shell whose `ulimit -n` is above RANKS

Prints JSON: the seconds until all ranks are connected, the watchdog's share of one core, the open file descriptors.
"""

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any, Final

import torch

from timedrun.distributed import heartbeat_channel
from timedrun.distributed.rendezvous import listen
from timedrun.distributed.stall_detector import ActivityProbe
from timedrun.distributed.watchdog import HEARTBEAT_INTERVAL, Watchdog

SENDERS: Final = 4
SECRET: Final = "0" * 32
WAITING: Final = {"step": 7, "activity": ["collective", 0.5, "all_reduce"]}


def send(port: int, ranks: range) -> None:
    """Connect as each of `ranks`, then send a heartbeat of each in every interval."""
    links = []
    for rank in ranks:
        links.append(socket.create_connection(("127.0.0.1", port)))
        links[-1].sendall(f"{SECRET} {rank:08}".encode())
    line = json.dumps(WAITING).encode() + b"\n"
    while True:
        began = time.monotonic()
        for place, link in enumerate(links):
            link.sendall(line)
            time.sleep(max(0.0, began + HEARTBEAT_INTERVAL * place / len(links) - time.monotonic()))
        time.sleep(max(0.0, began + HEARTBEAT_INTERVAL - time.monotonic()))


def main() -> None:
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    ranks: Any = SimpleNamespace(world_size=count, rank=0, is_first=True, device=torch.device("cpu"))
    with listen("127.0.0.1", 0) as listener:
        port, began = listener.getsockname()[1], time.monotonic()
        for part in range(SENDERS):  # daemons, which end with this process
            multiprocessing.Process(target=send, args=(port, range(1 + part, count, SENDERS)), daemon=True).start()
        connections = heartbeat_channel._accept(listener, SECRET, count, 60.0)
    connected = time.monotonic() - began
    watchdog = Watchdog(ranks, lambda message, code: None).open(connections, ActivityProbe(os.getpid(), ranks.device))
    threading.Thread(target=watchdog._run, daemon=True).start()
    began, used = time.monotonic(), time.process_time()  # this thread sleeps
    time.sleep(seconds)
    share, files = (time.process_time() - used) / (time.monotonic() - began), len(os.listdir("/proc/self/fd"))
    assert watchdog.failure is None, watchdog.failure
    values = {"ranks": count, "connected_seconds": connected, "core_share": share, "file_descriptors": files}
    print(json.dumps(values))


if __name__ == "__main__":
    main()
