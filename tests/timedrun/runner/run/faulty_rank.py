"""A rank that fails on purpose: `python faulty_rank.py STEP:HOW run ...` is `timedrun run ...` with a fault at a step.

stop: SIGSTOP; raise: an exception; hang: sleep forever; nan: the loss is NaN from that step on;
slow: each step from there on takes longer, and SIGABRT comes after the run, as a library's teardown may cause.
"""

import os
import signal
import sys
import time

from torch import Tensor

from timedrun.cli import main
from timedrun.runner.distributed.watchdog import Watchdog
from timedrun.runner.run.timed_run import TimedRun

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
        case "slow":
            time.sleep(0.2)


if __name__ == "__main__":
    step, how = sys.argv[1].split(":")

    def faulty_step_done(run: TimedRun, samples: int, loss: Tensor) -> None:
        due = run.position.step + 1 >= int(step)
        step_done(run, samples, loss * float("nan") if due and how == "nan" else loss)
        if due:
            inject(how)

    TimedRun.step_done = faulty_step_done
    if how == "slow":
        Watchdog.stop = lambda watch: os.abort()  # once the run has ended
    sys.exit(main(sys.argv[2:]))
