"""Values of result sets that the explorer's page shows, each with the lines of the log that it is computed from."""

from __future__ import annotations

import hashlib
import math
import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from judging.comparison.answers import geometric
from judging.comparison.expected_time import Attempts, expected_time
from judging.comparison.tradeoff import LEAST_SEEDS, ended
from judging.ground.cores import usable_cores
from judging.ground.errors import UsageError
from judging.ground.log_archives import Unpacked, unpacked
from judging.ground.race_labels import is_swept, label_of
from judging.ground.result_files import read_object, require_log
from judging.ground.stdio import progress
from judging.scoring.clocks import optimizer_steps
from judging.scoring.cost import per_hour
from judging.scoring.decomposition import EPOCHS, SAMPLES, STEPS, run_parts
from judging.scoring.interval import Interval
from judging.scoring.power import shared_energy
from judging.scoring.recorded_run import recorded_run_of
from judging.scoring.score import Score, log_folders, score_folder
from mlevents import keys
from mlevents.evaluations import quality_of
from mlevents.record import RunRecord, read
from mlevents.rounds import BenchmarkRules, round_of_path
from mlevents.run_status import failure, rules_of
from mlevents.summary import RunSummary, summarize
from mlevents.terminal_escape import printable

ID_LENGTH: Final = 12  # hexadecimal digits of a card's permanent name
FILES_A_PROCESS: Final = 100  # logs that pay for the start of a process
SAMPLES_OF: Final = {EPOCHS: keys.TRAIN_SAMPLES, STEPS: keys.GLOBAL_BATCH_SIZE}
CITED: Final = {keys.RUN_START, keys.RUN_STOP, keys.SEED, keys.EVAL_ACCURACY, keys.METHOD, *SAMPLES_OF.values()}
"""Keys of the events that values are computed from."""

Prices = Sequence[tuple[str, float, bool]]
"""US dollars per hour of the systems whose name or hardware matches a shell pattern, or, if True, of each of their
accelerators; the first that matches counts."""


def explored_sets(paths: Sequence[Path], prices: Prices = (), *, show_progress: bool = False) -> list[dict[str, Any]]:
    """Return the sets at `paths` with their runs, as JSON values; archives of logs are read, too.

    Paths are relative to the folder of all `paths`. A card is named after the SHA-256 of its log, or of all logs of its
    set, so that a link stays valid wherever the logs lie. Raises UsageError if a path does not exist, or there is no
    result file."""
    with unpacked(paths) as places, ExitStack() as ends:
        for path in places.paths:
            require_log(path)
        folders = log_folders([*places.paths, *places.archives])
        if not folders:
            raise UsageError(f"no result_*.txt found in {', '.join(map(str, paths))}.")
        mapped: Any = map
        processes = min(usable_cores(), sum(len(files) for _, files in folders.values()) // FILES_A_PROCESS)
        if processes > 1:  # Ctrl-C ends this process, which ends the others
            pool = ProcessPoolExecutor(processes, None, signal.signal, (signal.SIGINT, signal.SIG_IGN))
            ends.callback(pool.shutdown, cancel_futures=True)
            mapped = pool.map
        read_folders = mapped(partial(_sets_of, prices=prices, places=places), folders.items())
        steps = zip(progress(folders, "sets read", shown=show_progress), read_folders, strict=True)
        sets: list[dict[str, Any]] = [each for _, of_folder in steps for each in of_folder]
    names: Counter[str] = Counter()
    for card in (card for values in sets for card in (values, *values["runs"])):
        names[card["id"]] += 1
        if names[card["id"]] > 1:  # a copy of a log
            card["id"] += f"-{names[card['id']]}"
    return sets


def _sets_of(found: tuple[Path, tuple[Path, list[Path]]], prices: Prices, places: Unpacked) -> list[dict[str, Any]]:
    """Return the sets of a folder, which is `found` as in `log_folders`."""
    folder, (_, files) = found
    sets: list[dict[str, Any]] = []
    summaries: dict[str, RunSummary] = {}
    cited: dict[Path, RunRecord] = {}
    for file in files:  # one log is in memory at a time
        record = read(file)
        summaries[file.name] = summarize(record)
        cited[file] = replace(record, events=tuple(event for event in record.events if event.key in CITED))
    for score in score_folder(folder, [*summaries.values()], None, ""):
        members = [summaries[name] for name in score.files]
        rules, _ = rules_of(score.benchmark, score.ruleset, members)
        energy, joules = shared_energy(members)
        swept = is_swept(folder)
        failures = [None if swept and ended(run) else failure(run, score.ruleset) for run in members]
        runs = [
            _run(run, cited[run.path], rules, failed) | {"joules": joules.get(run.path)}
            for run, failed in zip(members, failures, strict=True)
        ]
        methods = sorted({printable(str(event.value)) for run in members for event in cited[run.path].all(keys.METHOD)})
        values = _set(score, members, runs, rules, places) | _middle(score, runs, swept)
        values |= {
            "methods": methods,
            "folder": places.shown(folder),
            "race": places.shown(folder.parent) if label_of(folder) else "",
            "archive": places.archive_of(folder),
        }
        values["round"] = re.sub(r"[.]0$", "", f"v{rules_name}") if (rules_name := round_of_path(folder)) else ""
        names, number = (values["system"], values["hardware"]), values["accelerators"]
        matching = (p for p in prices if any(fnmatchcase(name, p[0]) for name in names) and (number or not p[2]))
        hourly = next((usd * (number if each else 1) for _, usd, each in matching), None)
        values |= {"price": hourly, "priced": per_hour(hourly)}
        used = [run["joules"] for run in runs if joules and run["failure"] is None]
        values |= {"joules": median(used) if used else None, "energy": energy if joules else ""}
        sets.append(values)
    return sets


def _run(run: RunSummary, record: RunRecord, rules: BenchmarkRules | None, failed: str | None) -> dict[str, Any]:
    """Return a run's values, with the lines of the events in `record` that they are computed from."""
    known = run.final_quality is not None
    final = [e for e in record.all(keys.EVAL_ACCURACY) if known and quality_of(e, rules) == run.final_quality]
    seeds = [event for event in record.all(keys.SEED) if type(event.value) is int]
    parts = run_parts(run, rules)
    unit, amount = next(iter(parts.amounts.items())) if parts else (None, None)
    named = [record.started, record.stopped, *final[-1:], *seeds[-1:]]
    if parts and unit == SAMPLES:
        named += [record.last(SAMPLES_OF[counted]) for counted in parts.amounts if counted in SAMPLES_OF]
    return {
        "id": run.sha256[:ID_LENGTH],
        "file": printable(run.path.name),
        "minutes": run.minutes,
        "failure": printable(failed) if failed else None,
        "quality": run.final_quality,
        "samples": amount,
        "unit": unit,
        "training": parts.training_minutes if parts else None,
        "speedrun": None if failed else run.block_minutes,
        "steps": None if failed else optimizer_steps(run, rules),
        "seed": None if run.seed is None else str(run.seed),  # may exceed a JavaScript number
        "lines": {event.key: event.line for event in named if event},
    }


def _set(
    score: Score,
    members: Sequence[RunSummary],
    runs: Sequence[dict[str, Any]],
    rules: BenchmarkRules | None,
    places: Unpacked,
) -> dict[str, Any]:
    """Return a set's values without its time and quality."""
    description = recorded_run_of(members[0].path).system
    system, accelerators, hardware = _hardware(description)
    parts = score.parts
    content = "".join(sorted(run.sha256 for run in members))
    texts = {name: getattr(score, name) for name in ("submitter", "system", "benchmark", "division", "dataset")} | {
        "config": score.label or score.config_name,
        "hardware": hardware,
        "metric": rules.metric if rules else "quality",
        "software": _text(system.get("framework")),
        "described": places.shown(description) if system else "",
    }
    return {name: printable(text) for name, text in texts.items()} | {
        "id": hashlib.sha256(content.encode()).hexdigest()[:ID_LENGTH],
        "demonstration": score.demonstration,
        "scaled": score.scaling_factor,
        "target": score.target,
        "higher": rules is None or rules.direction == ">=",
        "samples": parts.samples if parts else None,
        "unit": parts.unit if parts else None,
        "training": parts.samples / parts.samples_per_second / 60 if parts else None,
        "speedrun": score.speedrun_minutes,
        "steps": score.steps,
        "accelerators": accelerators,
        "reached": sum(run["failure"] is None for run in runs),
        "runs": runs,
    }


def _middle(score: Score, runs: Sequence[dict[str, Any]], swept: bool) -> dict[str, Any]:
    """Return a set's time and quality with their intervals, and what the time is: of a length of a sweep the geometric
    mean of all runs; else the score, the mean, or the expected time to a success if runs missed the target."""
    qualities = [run["quality"] for run in runs if run["quality"] is not None]
    quality = Interval.of(qualities, LEAST_SEEDS) if qualities else None
    done = [run["minutes"] for run in runs if run["failure"] is None]
    missed = [math.nan if run["minutes"] is None else run["minutes"] for run in runs if run["failure"] is not None]
    minutes: Interval | None = None
    if swept:
        what, minutes = "Mean time of all runs", geometric(done) if done else None
    elif score.score_minutes is not None:
        what, minutes = "Score", Interval(score.score_minutes, *(() if score.scaling_factor else score.interval or ()))
        quality = quality and replace(quality, value=score.quality or quality.value)
    elif not missed:
        what, minutes = "Mean time, no score", Interval.of(done, LEAST_SEEDS)
    else:
        what, expected = "Expected time, no score", expected_time(Attempts(done, missed))
        if expected.mean is not None:
            minutes = Interval(expected.mean, expected.low, expected.high)
    known = {name: of for name, of in (("minutes", minutes), ("quality", quality)) if of}
    return {
        **{name: known[name].value if name in known else None for name in ("minutes", "quality")},
        "ends": {name: of.bounds for name, of in known.items() if of.bounds and of.bounds[0] > 0},
        "what": what,
        "swept": swept,
        "reason": "" if swept else printable(score.reason or ""),
    }


def _hardware(description: Path) -> tuple[Mapping[str, Any], int | None, str]:
    """Return a system description, its number of accelerators and the name of one, else of the processor."""
    system = read_object(description)
    counts = [re.match(r"\s*(\d{1,6})", _text(system.get(k))) for k in ("number_of_nodes", "accelerators_per_node")]
    number = int(counts[0][1]) * int(counts[1][1]) if counts[0] and counts[1] else None
    name = _text(system.get("accelerator_model_name"))
    if name.lower() in ("", "n/a", "none", "-") or not number:
        name = _text(system.get("host_processor_model_name"))
    return system, number or None, name


def _text(value: object) -> str:
    return " ".join(str(value).split()) if isinstance(value, str | int | float) else ""
