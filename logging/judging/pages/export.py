"""Export of the values of logs to CSV or TensorBoard: from the logs alone, without a hook in the runs."""

import csv
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from judging.ground.config_values import flatten
from judging.ground.errors import TimedrunError, UsageError
from judging.ground.race_labels import label_of
from judging.ground.result_files import existing, read_json, require_log, write_output
from judging.pages.curves import points
from judging.pages.score_table import NOTICE, inert
from judging.scoring.recorded_run import recorded_run_of
from mlevents import keys
from mlevents.record import RunRecord, read
from mlevents.run_status import reached
from mlevents.summary import RunSummary, summarize

MINUTES: Final = "time_to_train_minutes"
SPEEDRUN: Final = "speedrun_minutes"
STEPS: Final = "optimizer_steps"
COLUMNS: Final = ("run", "config", "seed", "status", "verified", "minutes", "step", "samples", "epoch", "kind", "value")


@dataclass(frozen=True)
class Run:
    """One log: its name by the folders below the exported path, and its content."""

    name: str
    record: RunRecord
    summary: RunSummary

    @property
    def config(self) -> str:
        """The label of its side of a race, or else the name of its config."""
        return label_of(self.record.path.parent) or self.summary.config_name or ""

    @property
    def parameters(self) -> dict[str, str]:
        """The settings of the run's config.json, or else the hyperparameters that its log names."""
        config = recorded_run_of(self.record.path).config
        if config.is_file():
            return {name: str(value) for name, value in flatten(read_json(config)).items()}
        logged = {keys.GLOBAL_BATCH_SIZE: self.summary.global_batch_size, keys.SEED: self.summary.seed}
        return {name: str(value) for name, value in {**logged, **self.summary.hyperparameters}.items()}

    @property
    def totals(self) -> dict[str, float]:
        """The run's time to train, its time of training alone and its optimizer steps, as far as its log has them."""
        run = self.summary
        totals = {MINUTES: run.minutes, SPEEDRUN: run.block_minutes, STEPS: run.steps}
        return {name: float(value) for name, value in totals.items() if value is not None}

    @property
    def tags(self) -> dict[str, str]:
        """Description of the run, with its status and MLCommons' notice."""
        run = self.summary
        named = {"benchmark": run.benchmark, "dataset": run.dataset, "config": self.config}
        named |= {"submitter": run.organization, "system": run.platform, "status": run.status or "unfinished"}
        named |= {"target_reached": str(reached(run)), "sha256": run.sha256, "verified": f"False. {NOTICE}"}
        return {f"timedrun.{name}": value for name, value in named.items() if value}


def runs_at(paths: Sequence[Path]) -> Iterator[Run]:
    """Yield the runs at `paths` one at a time, copies of a log once. Raises UsageError if a path does not exist, is a
    file that holds no log, or no log was found."""
    seen = set()
    base = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    for path in paths:
        require_log(path)
        for file in existing(path):
            record = read(file)
            if record.events and record.sha256 not in seen:
                seen.add(record.sha256)
                name = os.path.relpath(os.path.abspath(file), base)
                yield Run(name.removesuffix(".txt"), record, summarize(record))
    if not seen:
        raise UsageError(f"no log found in {', '.join(map(str, paths))}.")


def write_csv(runs: Iterator[Run], out: Path) -> int:
    """Write one row per logged value, and one per run for each of its totals; return the number of runs."""
    text, count = io.StringIO(), 0
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        count += 1
        log = run.summary
        about = [inert(run.name), inert(run.config), log.seed, inert(log.status or "unfinished"), False]
        evaluated = ((at.minutes, at.step, at.samples, at.epoch, inert(at.kind), at.value) for at in points(run.record))
        totals = ((log.minutes, None, None, None, kind, value) for kind, value in run.totals.items())
        writer.writerows([*about, *row] for row in (*evaluated, *totals))
    write_output(out, text.getvalue())
    return count


def write_tensorboard(runs: Iterator[Run], folder: Path) -> int:
    """Write event files, a folder per run, with the times of the log and its settings as hparams; return the number of
    runs. The step of a value is its `progress`. Raises TimedrunError if tensorboard is missing, or `folder` holds a run
    already."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise TimedrunError("--tensorboard needs tensorboard: pip install 'timedrun[tensorboard]'.") from None

    def scalar(kind: str, value: float, step: int, seconds: float) -> Any:
        return Event(wall_time=seconds, step=step, summary=Summary(value=[Summary.Value(tag=kind, simple_value=value)]))

    count = 0
    for run in runs:
        count += 1
        target = folder / run.name
        if target.exists():
            raise TimedrunError(f"{target} exists; exporting again would double its values. Choose another folder.")
        begin = (run.record.started or run.record.events[0]).time_ms / 1e3
        end = (run.record.stopped or run.record.events[-1]).time_ms / 1e3
        writer = EventFileWriter(str(target))
        settings = {**run.parameters, **run.tags}
        for part in (
            hparams.hparams_config_pb([hparams.HParam(name) for name in settings], [hparams.Metric(MINUTES)]),
            hparams.hparams_pb(settings, trial_id=run.name, start_time_secs=begin),
        ):
            writer.add_event(Event(wall_time=begin, summary=part))
        for at in points(run.record):
            writer.add_event(scalar(at.kind, at.value, at.progress, at.time_ms / 1e3))
        if run.record.stopped is not None:
            for kind, value in run.totals.items():
                writer.add_event(scalar(kind, value, 0, end))
        writer.close()
    return count


WRITERS: Final[Mapping[str, Callable[[Iterator[Run], Any], int]]] = {"csv": write_csv, "tensorboard": write_tensorboard}
