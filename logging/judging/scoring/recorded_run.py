"""Recorded runs that can be repeated: a log with its config, system, environment and provenance."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judging.ground.config_values import digest_of
from judging.ground.errors import TimedrunError
from judging.ground.result_files import read_json, read_object
from mlevents import keys
from mlevents.record import result_files
from mlevents.summary import RunSummary

DESCRIBES_SOFTWARE = frozenset({"framework", "other_software_stack", "operating_system", "sw_notes"})
_THREADS = "torch threads"  # of environment.txt
NAMES_THE_SYSTEM = frozenset({"submitter", "division", "status", "system_name", "hw_notes"})


@dataclass(frozen=True)
class RecordedRun:
    """One result: its log, the run's own folder, the folder shared by the runs of its system, and its system file."""

    log: Path
    side: Path
    shared: Path
    system: Path

    @property
    def number(self) -> int:
        """N of result_N.txt, 0 for another name."""
        match = re.fullmatch(r"result_(\d{1,9})\.txt", self.log.name)
        return int(match[1]) if match else 0

    @property
    def config(self) -> Path:
        return self.side / "config.json"

    def file(self, name: str) -> Path | None:
        """Return the file `name` of this run, or else the one shared by the runs of its system, or None."""
        return next((folder / name for folder in (self.side, self.shared) if (folder / name).is_file()), None)

    def problem(self, logged: RunSummary) -> str:
        """Return why this run cannot be repeated, or "" if it can: `logged` and its config must agree."""
        if not self.config.is_file():
            return f"{self.log.name} has no {self.side.name}/config.json, so its settings are unknown"
        try:
            values = read_json(self.config)
        except TimedrunError as error:
            return f"{self.side.name}/{self.config.name} is not a config ({error})"
        benchmark = values.get("benchmark") if isinstance(values, dict) else None
        if not isinstance(benchmark, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", benchmark):
            return f"{self.side.name}/config.json names no benchmark package"
        if logged.config_digest is None:
            return f"{self.log.name} logs no {keys.CONFIG_DIGEST}, so its config cannot be verified"
        if digest_of(values) != logged.config_digest:
            return f"{self.side.name}/config.json is not the config of {self.log.name}: it was changed after the run"
        if logged.seed != values.get("seed"):
            return f"{self.log.name} logs seed {logged.seed}, {self.side.name}/config.json has {values.get('seed')}"
        evaluation = values.get("evaluation")
        target = evaluation.get("target") if isinstance(evaluation, dict) else None
        for key, said, configured in (
            (keys.QUALITY_TARGET, logged.quality_target, target),
            (keys.GLOBAL_BATCH_SIZE, logged.global_batch_size, values.get("global_batch")),
        ):
            if None not in (said, configured) and said != configured:
                return f"{self.log.name} logs {key} {said}, {self.side.name}/config.json has {configured}"
        return ""


def recorded_runs(path: Path) -> dict[str, list[RecordedRun]]:
    """Find the result sets at `path` (folders of `run`, a race or a package), each by a unique name. Copies of a set (a
    race also holds its package) are skipped."""
    folders: dict[Path, list[RecordedRun]] = {}
    for log in result_files(path):
        folders.setdefault(log.parent, []).append(recorded_run_of(log))
    sets: dict[str, list[RecordedRun]] = {}
    seen: set[frozenset[str]] = set()
    for results in sorted(folders.values(), key=lambda results: not all(run.config.is_file() for run in results)):
        content = frozenset(hashlib.sha256(run.log.read_bytes()).hexdigest() for run in results)
        if content not in seen:
            seen.add(content)
            folder, in_package = results[0].log.parent, results[0].shared != results[0].side
            name = f"{folder.parent.name}_{folder.name}" if in_package else folder.name
            free = (f"{name}_{number}" if number else name for number in range(len(sets) + 1))
            sets[next(own for own in free if own not in sets)] = results
    return sets


def recorded_ranks(provenance: dict[str, Any]) -> int:
    """Return the number of ranks in a run's `provenance`, 1 if it has none."""
    ranks = provenance.get("ranks")
    return ranks if isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0 else 1


def recorded_threads(run: RecordedRun) -> int | None:
    """Return the CPU threads per rank of a run, None if they are not recorded."""
    threads = provenance_of(run).get("threads")
    match = re.match(r"\d{1,4} ", environment(run.file("environment.txt"))[0].get(_THREADS, ""))
    return threads if type(threads) is int else int(match[0]) if match else None


def provenance_of(original: RecordedRun) -> dict[str, Any]:
    """Return the run's provenance; empty if it is missing or unreadable."""
    path = original.file("provenance.json")
    return read_object(path) if path else {}


def differences(old: RecordedRun, new: RecordedRun) -> dict[str, dict[str, list[Any]]]:
    """Return the differences of two runs in hardware, versions and origin, as {group: {name: [old, new]}}.

    Only what both sides recorded is compared. The origin has commit, dirty, difference, image_digest, ranks, data and
    threads, of which the old ones are None if they were not recorded."""
    first, second = (read_object(run.system) for run in (old, new))
    both = [key for key in first if key not in DESCRIBES_SOFTWARE | NAMES_THE_SYSTEM and first[key] and second.get(key)]
    both = [key for key in both if _number(first[key]) != _number(second[key])]
    environments = [environment(run.file("environment.txt")) for run in (old, new)]
    origins = [provenance_of(run) for run in (old, new)]
    threads = [recorded_threads(run) for run in (old, new)]
    return {
        "hardware": _differing(first, second, both)
        | _differing(environments[0][0], environments[1][0], [name for name in environments[0][0] if name != _THREADS]),
        "versions": _differing(environments[0][1], environments[1][1], [*environments[0][1], *environments[1][1]]),
        "origin": _differing(origins[0], origins[1], ["commit", "dirty", "difference", "image_digest", "ranks"])
        | _differing(_data(origins[0]), _data(origins[1]), ["data"])
        | ({"threads": threads} if threads[1] not in (None, threads[0]) else {}),
    }


def recorded_run_of(log: Path) -> RecordedRun:
    """Return the run of `log`, with its files next to it, or in a package's benchmarks/ and systems/."""
    log = Path(os.path.realpath(log))  # `resolve` raises on a link to itself
    number = log.stem.partition("_")[2]
    side = log.parent / f"run_{number}"
    benchmark, system, results = log.parent, log.parent.parent, log.parent.parent.parent
    if not side.is_dir() and results.name == "results":
        package = results.parent
        shared = package / "benchmarks" / benchmark.name / "implementations" / system.name
        return RecordedRun(log, shared / "runs" / side.name, shared, package / "systems" / f"{system.name}.json")
    return RecordedRun(log, side, side, side / "system.json")


def _data(origin: dict[str, Any]) -> dict[str, Any]:
    data = origin.get("data")
    return {"data": data["sha256"]} if isinstance(data, dict) and data.get("sha256") else {}


def _number(value: object) -> object:
    """Return a number that a description has as text ("1") as a number; other values as they are."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d+([.]\d+)?", value) else value


def environment(path: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Parse environment.txt (see timedrun.runner.provenance.system) into machine and versions, by name."""
    machine: dict[str, str] = {}
    versions: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path else []:
        name, pinned, version = line.partition("==")
        if pinned:
            versions[name] = version
        elif match := re.match(r"(processor|memory|torch threads|cuda device \d+:?|OMP_NUM_THREADS=)\s*(.*)", line):
            machine[match[1].rstrip(":=")] = match[2]
        elif match := re.match(r"(python|operating system|torch|cuda|cudnn|nccl) (.*)", line):
            versions[match[1] if match[1] != "torch" else "torch (build)"] = match[2]
    return machine, versions


def _differing(old: dict[str, Any], new: dict[str, Any], names: list[str]) -> dict[str, list[Any]]:
    """Return the values of `names` that differ, those missing on one side (None) last; nothing if a side is empty."""
    if not old or not new:
        return {}
    pairs = {name: [old.get(name), new.get(name)] for name in dict.fromkeys(names) if old.get(name) != new.get(name)}
    return dict(sorted(pairs.items(), key=lambda item: None in item[1]))
