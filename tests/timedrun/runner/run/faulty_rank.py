"""A rank that may fail on purpose: `python faulty_rank.py STEP:HOW run ...` is `timedrun run ...` with a fault at a
step, and with a watchdog that waits for `SECONDS` where it would wait for 15 s.

stop: SIGSTOP; raise: an exception; hang: sleep forever; nan: the loss is NaN from that step on; none: no fault.
"""

import os
import signal
import sys
import time

from torch import Tensor

from timedrun.cli import main
from timedrun.runner.distributed import watchdog
from timedrun.runner.run.timed_run import TimedRun

SECONDS = 3.0
step_done = TimedRun.step_done


def inject(how: str) -> None:
    match how:
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise RuntimeError("raised on purpose")
        case "hang":
            while True:
                time.sleep(60)


if __name__ == "__main__":
    step, how = sys.argv[1].split(":")

    def faulty_step_done(run: TimedRun, samples: int, loss: Tensor) -> None:
        due = run.position.step + 1 >= int(step)
        step_done(run, samples, loss * float("nan") if due and how == "nan" else loss)
        if due:
            inject(how)

    TimedRun.step_done = faulty_step_done
    watchdog.HEARTBEAT_TIMEOUT = watchdog.STUCK_SECONDS = SECONDS
    watchdog.GRACE_SECONDS = 1.0
    sys.exit(main(sys.argv[2:]))
