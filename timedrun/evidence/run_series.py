"""Runs of one config, one after another, each in a process of its own: `timedrun run --runs N`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from judging.ground import result_files, stdio
from judging.ground.errors import ExitCode
from judging.pages.table import Table
from mlevents.terminal_escape import printable
from timedrun.racing.child_run import run_child
from timedrun.racing.race_file import Race, Turn, paths_of
from timedrun.racing.turns import run_all
from timedrun.runner.config import RunConfig
from timedrun.runner.process.launch_env import module_command
from timedrun.runner.process.verdict import FINE, verdict_of
from timedrun.runner.run.printed_verdict import verdict_values
from timedrun.runner.run.result_set import next_seed


def run_several(config: RunConfig, folder: Path, argv: Sequence[str], runs: int, *, as_json: bool) -> ExitCode:
    """Run the command line `argv` in `runs` processes, one after another, with the next free numbers and seeds; print
    the verdicts of all, also after a failed one and after SIGINT, which ends the current one; return the worst code."""
    exits: list[int] = []

    def start(turn: Turn, label: str) -> tuple[int, int]:
        own = ["--results", str(paths_of(folder.parent, turn).log), "--seed", str(turn.seed), "--runs", "1"]
        code, _, interrupted = run_child([*module_command("timedrun", *argv), *own], label)
        exits.append(code)
        return code, interrupted

    turns = [Turn(side=folder.name, number=0, seed=0) for _ in range(runs)]
    race = Race(benchmark=config.benchmark, runs=runs, sides={folder.name: config.name}, turns=turns)
    received: list[int] = []
    for turn in run_all(race, folder.parent, start, received, "run"):
        if turn.status == "running":  # not earlier: other processes may write to the folder
            turn.number, turn.seed = result_files.next_number(folder), next_seed(config, folder)
    rows, verdicts = [], []
    for turn, code in zip(turns, exits, strict=False):  # the others were not started
        paths = paths_of(folder.parent, turn)
        words = f"ended with exit code {code} before it opened a log"
        values: dict[str, Any] = {"result": None, "exit_code": code, "words": words}
        if paths.log.is_file():
            values = verdict_values(paths, verdict_of(paths))
        verdicts.append(values)
        minutes, quality = values.get("minutes"), values.get("quality")
        seconds = "-" if minutes is None else f"{minutes * 60:.2f} s"
        outcome = values["words"].removesuffix(f": {paths.log}") if minutes is None else "target reached"
        rows.append([str(turn.number), str(turn.seed), seconds, "-" if quality is None else f"{quality:.4f}", outcome])
    if as_json:
        stdio.write(json.dumps({"results": str(folder), "runs": verdicts}, indent=2) + "\n", sys.stdout)
    else:
        Table(["run", "seed", "time (unverified)", "quality", "outcome"], rows).show()
        done = sum(row[2] != "-" for row in rows)
        rest = f"; {runs - len(rows)} not started" if len(rows) < runs else ""
        stdio.show(printable(f"{done} of {len(rows)} runs reached the target{rest}: {folder}"))
        if done:
            stdio.next_command("score", folder)
    codes = [ExitCode(code) if code in set(ExitCode) else ExitCode.ERROR for code in exits]
    if received and len(exits) < runs and {*codes[-1:]} <= {*FINE}:  # between two runs
        codes.append(ExitCode(128 + received[0]))
    severity = (ExitCode.OK, ExitCode.TARGET_NOT_REACHED, ExitCode.STOPPED_RESUMABLE)
    return max(codes, key=lambda code: severity.index(code) if code in severity else len(severity))
