"""Process of one rank of several, started by timedrun's agent (`python -m timedrun.runner.run.rank`) or by torchrun."""

import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import cattrs

from judging.ground import stdio
from judging.ground.errors import ExitCode, describe
from timedrun.runner import config
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.config import RunConfig
from timedrun.runner.process import parent_death_signal, status_files
from timedrun.runner.process.launch_env import STATUS_FILES
from timedrun.runner.run.worker import LaunchOptions, execute
from timedrun.runner.storage import method_sources

MODULE: Final = "timedrun.runner.run.rank"


def dump_job(benchmark: Benchmark, settings: RunConfig, options: LaunchOptions) -> str:
    """Return as JSON what the ranks of a node have to run: the resolved config and the launch options."""
    job = {
        "benchmark": benchmark.name,
        "config_type": f"{type(settings).__module__}:{type(settings).__qualname__}",
        "config": config.dump(settings),
        "options": cattrs.unstructure(options),
        "methods": method_sources.named_by_user(),
    }
    return json.dumps(job)


def main() -> NoReturn:
    """Run the wrapper's job as the rank that the environment names."""
    parent_death_signal.obey_environment()
    if os.environ["RANK"] != "0":
        os.dup2(2, 1)  # which comes with its rank; standard output is rank 0's
    job = json.loads((Path(os.environ[STATUS_FILES]) / "job.json").read_text())
    benchmark = find(job["benchmark"], working_directory=True)  # as the wrapper, whose user named it
    for reference in job["methods"]:
        method_sources.name_by_user(reference)
    settings = config.load(pkgutil.resolve_name(job["config_type"]), job["config"])
    run_rank(benchmark, settings, cattrs.structure(job["options"], LaunchOptions))


def run_rank(
    benchmark: Benchmark, settings: RunConfig, options: LaunchOptions, after: Callable[[], object] = lambda: None
) -> NoReturn:
    """Run as one rank, call `after`, and exit without Python's teardown: a thread of torch that outlives the process
    group can abort the process there, and an agent would take the abort for the outcome of the run."""
    try:
        code = execute(benchmark, settings, options)
        after()
        code = status_files.report_left(code)
    except BaseException as error:
        known = describe(error)
        if known is None:
            stdio.write(traceback.format_exc())
        elif known[1] and not status_files.report_error(*known):
            stdio.write(f"timedrun run: {known[1]}\n")
        code = known[0] if known else ExitCode.ERROR
    for stream in (sys.stdout, sys.stderr):
        stdio.flush(stream)
    os._exit(int(code))


if __name__ == "__main__":
    main()
