"""Guard of a wrapper's ranks, a process that ends what they started when the wrapper has ended or was killed.

A DataLoader's worker under forkserver has the fork server as its parent, so the kernel ends the ranks alone. Run as a
file with the variable of the ranks and its value, the wrapper's temporary folder, which it removes too.
"""

import contextlib
import shutil
import signal
import sys
import time

import psutil

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # a scheduler may signal every process of a job
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()  # until the wrapper has ended
    for _ in range(100):  # a process that hangs in the kernel is not waited for
        found = False
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(sys.argv[1], "").startswith(f"{sys.argv[2]}/"):
                    process.kill()
                    found = True
        if not found:
            break
        time.sleep(0.05)
    shutil.rmtree(sys.argv[2], ignore_errors=True)
