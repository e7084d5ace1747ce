"""A process beside the supervisor that outlives its SIGKILL, to end what the ranks had started: workers of a DataLoader
started by spawn or forkserver would stay. Run as a file, by itself; process groups come in by standard input."""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read `N` (a group that began) and `-N` (one that ended), a line each, until the supervisor is gone; then end
    those that are left."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a scheduler may signal every process of a job
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line)
        if group > 0:
            groups.add(group)
        else:
            groups.discard(-group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
