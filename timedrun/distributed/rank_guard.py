"""A process beside the supervisor that outlives its SIGKILL, to end what the ranks had started: workers of a DataLoader
started by spawn or forkserver would stay. Run as a file, by itself: `rank_guard.py FOLDER`, the supervisor's own, which
goes too; process groups come in by standard input."""

import contextlib
import os
import shutil
import signal
import sys
import time


def main() -> None:
    """Read `N` (a group that began) and `-N` (one that ended), a line each, until the supervisor is gone; then end
    those that are left, and the folder."""
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
    for _ in range(20):  # a rank may have put something there while it was being ended
        shutil.rmtree(sys.argv[1], ignore_errors=True)
        if not os.path.exists(sys.argv[1]):
            break
        time.sleep(0.05)


if __name__ == "__main__":
    main()
