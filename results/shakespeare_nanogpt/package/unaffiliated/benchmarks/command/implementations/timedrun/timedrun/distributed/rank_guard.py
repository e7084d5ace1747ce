"""Guard of a launcher's ranks, a process that ends their process groups after the launcher was killed.

The kernel ends the ranks themselves (parent_death_signal) but not what they started: a DataLoader's worker under
forkserver, the default of Python 3.14, has the fork server as its parent and would stay forever. Run as a file with
the launcher's temporary folder as its argument, which it removes too.
"""

import contextlib
import os
import shutil
import signal
import sys

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a scheduler may signal every process of a job
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:  # the number of a group when it starts, and again when it has ended
        groups ^= {int(line)}
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
