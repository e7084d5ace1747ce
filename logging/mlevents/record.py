"""Read any submitter's MLPerf training log into a RunRecord; unreadable content becomes a finding."""

import hashlib
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from mlevents import evaluations, keys
from mlevents.evaluations import PROGRESS, Checkpoint, checkpoints, first_passing, progress_of, quality_of
from mlevents.event import MARK, MARK_BYTES, Event, Finding, LogReader, is_number
from mlevents.rounds import BENCHMARK_DATASET, RULESETS, BenchmarkRules, own_rules

_NEWEST: Final = {name: rules for ruleset in RULESETS.values() for name, rules in ruleset.benchmarks.items()}
MOST_EVENTS: Final = 250_000  # each takes about a kilobyte of memory; published logs have up to 13,212
_BLOCK: Final = 1 << 20  # bytes
ARCHIVES: Final = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # gzip zip bzip2 xz zstd


@dataclass(frozen=True)
class QualityPoint:
    """One evaluation: minutes since run_start, progress (epoch_num or samples_count), value of the metric."""

    minutes: float
    progress: float
    value: float


@dataclass(frozen=True)
class RunRecord:
    """Contents of one log. `events` are in file order; `problems` are findings about its form."""

    path: Path
    events: tuple[Event, ...]
    problems: tuple[Finding, ...]
    sha256: str

    @cached_property
    def by_key(self) -> dict[str, list[Event]]:
        """The events of each key, in file order."""
        values: dict[str, list[Event]] = {}
        for event in self.events:
            values.setdefault(event.key, []).append(event)
        return values

    def all(self, key: str) -> list[Event]:
        return list(self.by_key.get(key, ()))

    def first(self, key: str) -> Event | None:
        return next(iter(self.by_key.get(key, ())), None)

    def last(self, key: str) -> Event | None:
        return next(reversed(self.by_key.get(key, ())), None)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of the last event with `key`, or `default` without one."""
        event = self.last(key)
        return default if event is None else event.value

    def text(self, key: str) -> str | None:
        """Return the value of the last event with `key`, or None if it is not a string."""
        value = self.value(key)
        return value if isinstance(value, str) else None

    @property
    def benchmark(self) -> str | None:
        """The value of submission_benchmark, None unless logged as a string; like the next two, by their keys."""
        return self.text(keys.SUBMISSION_BENCHMARK)

    @property
    def division(self) -> str | None:
        return self.text(keys.SUBMISSION_DIVISION)

    @property
    def dataset(self) -> str | None:
        return self.text(keys.DATASET)

    @property
    def seed(self) -> int | None:
        """The value of seed, or None if it is not logged as an integer."""
        value = self.value(keys.SEED)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @cached_property
    def stopped(self) -> Event | None:
        """The first run_stop: the end of the timed region, as in MLCommons' summary."""
        return self.first(keys.RUN_STOP)

    @cached_property
    def started(self) -> Event | None:
        """The last run_start before the first run_stop: the start of the timed region, as in MLCommons' summary."""
        starts = [event for event in self._before_stop if event.key == keys.RUN_START]
        return starts[-1] if starts else None

    @cached_property
    def _before_stop(self) -> tuple[Event, ...]:
        return tuple(itertools.takewhile(lambda event: event is not self.stopped, self.events))

    @property
    def status(self) -> str | None:
        """The metadata status of run_stop: "success" or "aborted"."""
        status = self.stopped.metadata.get(keys.STATUS) if self.stopped else None
        return status if isinstance(status, str) else None

    @property
    def minutes(self) -> float | None:
        """Time to train in minutes, (run_stop - run_start) / 60000; None if one is missing or time ran backwards."""
        if self.started is None or self.stopped is None or self.stopped.time_ms < self.started.time_ms:
            return None
        return (self.stopped.time_ms - self.started.time_ms) / 60_000

    @property
    def init_minutes(self) -> float | None:
        """Minutes from the first init_start to the last init_stop; None if one is missing."""
        start, stop = self.first(keys.INIT_START), self.last(keys.INIT_STOP)
        return None if start is None or stop is None else (stop.time_ms - start.time_ms) / 60_000

    @cached_property
    def timed(self) -> tuple[Event, ...]:
        """The events from the run_start that counts up to run_stop, exclusive; () without a run_start."""
        return tuple(itertools.dropwhile(lambda event: event is not self.started, self._before_stop))

    @cached_property
    def quality(self) -> list[QualityPoint]:
        """The evaluations of the timed region with a number (of a quality with parts, the first) and a progress."""
        if self.started is None:
            return []
        rules = self.rules
        points = []
        for event in self.timed:
            if event.key != keys.EVAL_ACCURACY:
                continue
            value, progress = quality_of(event, rules), progress_of(event, rules)
            if is_number(value) and progress is not None:
                minutes = (event.time_ms - self.started.time_ms) / 60_000
                points.append(QualityPoint(minutes, progress, float(value)))
        return points

    @cached_property
    def _stopped_at(self) -> Checkpoint | None:
        """The checkpoint that ended a run evaluated after the clock, by default the last one; None for other runs."""
        rules = self.rules
        if rules is None or not evaluations.evaluated_offline(self.timed, self.stopped, rules):
            return None
        evaluated = checkpoints(self.timed, rules)
        return first_passing(evaluated, rules) or next(reversed(evaluated), None)

    @property
    def converged_at(self) -> dict[str, float]:
        """The progress of the last evaluation, or of the checkpoint that reached the target, by metadata name.

        Rounded to 3 digits, as in MLCommons' check of reference convergence; empty without an evaluation."""
        rules = self.rules
        reached = self._stopped_at
        if reached is None and rules is not None and rules.parts and not rules.parts_in_one_event:
            reached = first_passing(checkpoints(self.timed, rules), rules)
        for event in reversed(self.timed):
            at = progress_of(event, rules) if event.key == keys.EVAL_ACCURACY else None
            if at is not None and (reached is None or reached.progress == at):
                return {name: round(n, 3) for name in PROGRESS if is_number(n := event.metadata.get(name))}
        return {}

    @property
    def final_quality(self) -> float | None:
        """The number of the last eval_accuracy before run_stop, or None; of a quality with parts, the first part.

        Of a run that was evaluated after the clock, the number of the first checkpoint that reached the target."""
        if self.rules is not None and self.rules.parts:
            return self.final_parts.get(next(iter(self.rules.parts)))
        value = next((event.value for event in reversed(self._before_stop) if event.key == keys.EVAL_ACCURACY), None)
        if self._stopped_at is not None:
            value = self._stopped_at.values[""]
        return float(value) if is_number(value) else None

    @property
    def final_parts(self) -> dict[str, float]:
        """The last value before run_stop of each part of a quality with parts, or its checkpoint's; else empty."""
        rules = self.rules
        values: dict[str, Any] = {}
        if rules is not None and rules.parts and self._stopped_at is not None:
            values = self._stopped_at.values
        elif rules is not None and rules.parts:
            for event in self._before_stop:
                if event.key == keys.EVAL_ACCURACY:
                    values.update(rules.quality_parts(event.value, event.metadata.get(keys.METRIC)))
        return {name: float(value) for name, value in values.items() if is_number(value)}

    @property
    def evaluation_share(self) -> float | None:
        """The fraction, 0..1, of the time to train between eval_start and eval_stop; None if unknown or if checkpoints
        were evaluated after the clock."""
        if not self.minutes or self._stopped_at is not None:
            return None
        whole = spans(self._before_stop, keys.EVAL_START, keys.EVAL_STOP)
        spent_ms = [stop.time_ms - start.time_ms for start, stop in whole if start and stop]
        return sum(spent_ms) / (self.minutes * 60_000) if spent_ms else None

    @cached_property
    def own_rules(self) -> BenchmarkRules | None:
        """The rules of a benchmark that no ruleset has, as the log records them; None without valid ones."""
        try:
            return own_rules.parse(self.benchmark, self.value(keys.BENCHMARK_RULES))
        except ValueError:  # reported by the checks
            return None

    @property
    def rules(self) -> BenchmarkRules | None:
        """The newest rules of the benchmark, or its own; metric and parts are the same in all rounds."""
        return _NEWEST.get(self.benchmark or "") or self.own_rules

    @property
    def is_demonstration(self) -> bool:
        """True if the log names a dataset that is not the benchmark's own, which rules a submission out."""
        own = self.own_rules.dataset.lower() if self.own_rules else BENCHMARK_DATASET.get(self.benchmark or "")
        return self.dataset is not None and self.dataset.lower() != own


def spans(events: Iterable[Event], start_key: str, stop_key: str) -> Iterator[tuple[Event | None, Event | None]]:
    """Yield each start with the stop that follows it; None in place of one that is missing."""
    start: Event | None = None
    for event in events:
        if event.key == start_key:
            if start is not None:
                yield start, None
            start = event
        elif event.key == stop_key:
            yield start, event
            start = None
    if start is not None:
        yield start, None


def read(path: Path) -> RunRecord:
    """Read the log at `path`, whatever its bytes; a file that cannot be read yields a record with a problem and no
    events. Raises FileNotFoundError if there is no such file."""
    if obstacle := _obstacle(path):
        return _nothing_read(path, obstacle, hashlib.sha256().hexdigest())
    digest, reader = hashlib.sha256(), LogReader(str(path))
    events: list[Event] = []
    head, before = b"", 0
    with open(path, "rb") as file:
        while lines := file.readlines(_BLOCK):  # a block at a time: the log around the records may be large
            block = b"".join(lines)
            head = head or block
            digest.update(block)
            for number, raw in enumerate(lines, start=before + 1):
                event = reader.usual(number, raw.removesuffix(b"\n").removesuffix(b"\r"))
                if event is not None:
                    events.append(event)
                elif MARK_BYTES in raw:
                    events.extend(reader.events(number, raw.removesuffix(b"\n")))
            before += len(lines)
            why = ""
            if head.startswith(ARCHIVES) or head[257:262] == b"ustar":  # in which a stored log could be read
                why = "the file is an archive: unpack it first"
            elif len(events) + len(reader.problems) > MOST_EVENTS:
                why = f"more than {MOST_EVENTS:,} records, the limit; log once per block, not once per step"
            if why:
                file.seek(0)
                return _nothing_read(path, why, hashlib.file_digest(file, "sha256").hexdigest())
    if not events:
        hint = "; the file is UTF-16: save it as UTF-8" * any(MARK.encode(f"utf-16-{e}") in head for e in ("le", "be"))
        if re.search(rb":::MLPv0\.[56]", head):
            hint = "; the log has the format of MLPerf v0.5 and v0.6, which is not read"
        return _nothing_read(path, f"no readable {MARK} record{hint}", digest.hexdigest(), reader.problems_once)
    return RunRecord(path, tuple(events), tuple(reader.problems_once), digest.hexdigest())


def _obstacle(path: Path) -> str | None:
    """Return why `path` must not be opened (reading a pipe would block forever), or None."""
    if path.is_symlink() and not path.exists():
        return "is a broken symbolic link"
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        return "is a folder" if stat.S_ISDIR(mode) else "is a pipe or a device"
    return None if os.access(path, os.R_OK) else "is not readable (permission denied)"


def _nothing_read(path: Path, why: str, sha256: str, problems: Sequence[Finding] = ()) -> RunRecord:
    empty = Finding(level="error", rule="log-empty", message=f"{why}; counted as a failed run", path=str(path))
    return RunRecord(path, (), (*problems, empty), sha256)


def result_files(path: Path) -> list[Path]:
    """Return the result files at `path`: the file itself, or everything below a folder that is named result_*.txt.

    Files that hold no log are included, so that a run whose log was lost is counted. Sorted naturally (result_2 before
    result_10), those of a race's package after its sides'. Not entered are symbolic links to folders, hidden folders,
    and what lies below <ORG>/results/<system>/<benchmark>, where MLCommons' tools read no log. Raises FileNotFoundError
    if `path` does not exist, and OSError if a folder cannot be listed, which might hold results."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; name a result file or a folder of result files")
    if not path.is_dir():
        return [path]
    files = []
    for folder, folders, names in os.walk(path, onerror=_refuse):
        files += [Path(folder, name) for name in (*folders, *names) if re.fullmatch(r"result_.*\.txt", name)]
        results = Path(folder).absolute().parent.parent
        packaged = results.name == "results" and (results.parent / "systems").is_dir()
        folders[:] = [] if packaged else [name for name in folders if not name.startswith(".")]
    return sorted(files, key=lambda file: [(part == "package", natural(part)) for part in file.relative_to(path).parts])


def _refuse(error: OSError) -> None:
    raise error


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts result_2 before result_10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part) if index % 2 else 0, part) for index, part in enumerate(parts)]
