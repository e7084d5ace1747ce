"""Extract steps and evaluations of published ResNet and BERT results from their logs, for benchmarks/scale.py.

Usage: python benchmarks/published_steps.py ROUND [ROUND ...] [--json results/published/steps.json]
ROUND is a folder of submitters named after its round, such as v4.0. One row per set of one batch size on accelerators
whose logs mark their evaluations; a set that was submitted again in a later round counts once. Means are over the runs
that MLPerf's score averages. Training is the time to train without start-up, evaluation, and the first epoch's excess
over the median later one (cold caches), which has a field of its own.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from judging.ground.result_files import read_json
from judging.scoring.decomposition import SAMPLES, run_parts, time_parts
from mlevents import keys
from mlevents.record import read, result_files
from mlevents.rounds import BenchmarkRules, round_of_path, ruleset
from mlevents.run_status import failure
from mlevents.summary import RunSummary, summarize

BENCHMARKS = ("resnet", "bert")


@dataclass(frozen=True, kw_only=True)
class PublishedSet:
    """One published set: means over its scored runs, `samples_per_second` of training alone on all accelerators."""

    name: str  # round/submitter/system
    benchmark: str
    accelerator: str
    nodes: int
    accelerators_per_node: int
    interconnect: str
    networking: str
    global_batch: int
    minutes: float
    samples: float
    samples_per_second: float
    evaluations: float
    evaluation_seconds: float
    startup_seconds: float
    cold_seconds: float
    epochs_per_second: list[float]
    """Median over the runs of the samples per second of each epoch, of ResNet in the open division (images grow)."""


def scored(runs: list[RunSummary], rules: BenchmarkRules, round_name: str) -> list[RunSummary]:
    """Return the runs whose mean is the score; failed ones count as the slowest."""
    order = sorted(runs, key=lambda run: math.inf if failure(run, round_name) else run.minutes or math.inf)
    return order[rules.dropped : len(order) - rules.dropped]


def epoch_rates(folder: Path) -> list[float]:
    """Return the median over all logs of the samples per second of each epoch."""
    found: dict[int, list[float]] = {}
    for file in result_files(folder):
        record, began, number = read(file), None, 0
        samples = record.value(keys.TRAIN_SAMPLES)
        for event in record.timed:
            if event.key == keys.EPOCH_START:
                began = event.time_ms
            elif event.key == keys.EPOCH_STOP and began is not None:
                found.setdefault(number, []).append(1000 * samples / (event.time_ms - began))
                number, began = number + 1, None
    return [round(median(rates)) for _, rates in sorted(found.items())]


def published_set(folder: Path) -> PublishedSet | None:
    """Return the row of the logs in `folder`, or None if it lacks one of the fields."""
    round_name, system = round_of_path(folder), folder.parent.name
    assert round_name is not None, f"{folder} is in no folder that is named after a round"
    benchmark, rules = folder.name, ruleset(round_name).benchmarks[folder.name]
    description = folder.parents[2] / "systems" / f"{system}.json"
    runs = scored([summarize(read(file)) for file in result_files(folder)], rules, round_name)
    parts = [part for run in runs if (part := run_parts(run, rules)) and SAMPLES in part.amounts]
    batches = {run.global_batch_size for run in runs}
    if not description.is_file() or len(parts) < len(runs) or len(batches) > 1:
        return None
    values, means = read_json(description), time_parts(parts, SAMPLES)
    per_node, batch = int(float(values["accelerators_per_node"])), batches.pop()
    if not means.evaluation_marked or not per_node or batch is None:
        return None
    cold = fmean((run.first_epoch_share or 0.0) * (run.minutes or 0.0) for run in runs) * 60
    evaluated = fmean((run.evaluation_share or 0.0) * (run.minutes or 0.0) for run in runs) * 60
    evaluations = fmean(len(run.quality) for run in runs)
    training = means.minutes * means.training_share * 60 - cold
    return PublishedSet(
        name=f"v{round_name.removesuffix('.0')}/{folder.parents[2].name}/{system}",
        benchmark=benchmark,
        accelerator=values["accelerator_model_name"],
        nodes=int(float(values["number_of_nodes"])),
        accelerators_per_node=per_node,
        interconnect=str(values.get("accelerator_interconnect", "")),
        networking=str(values.get("host_networking", "")),
        global_batch=batch,
        minutes=round(means.minutes, 4),
        samples=round(means.samples),
        samples_per_second=round(means.samples / training, 1),
        evaluations=round(evaluations, 2),
        evaluation_seconds=round(evaluated / evaluations, 4),
        startup_seconds=round(fmean(run.startup_minutes or 0.0 for run in runs) * 60, 2),
        cold_seconds=round(cold, 2),
        epochs_per_second=epoch_rates(folder) if benchmark == "resnet" and runs[0].division == keys.OPEN else [],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=Path, nargs="+")
    parser.add_argument("--json", type=Path, default=Path("results/published/steps.json"))
    arguments = parser.parse_args()
    rows: dict[tuple[str, float, int], PublishedSet] = {}
    for path in sorted(arguments.rounds):
        for folder in sorted({file.parent for file in result_files(path)}):
            if folder.name in BENCHMARKS and (row := published_set(folder.resolve())):
                rows.setdefault((row.benchmark, row.minutes, row.global_batch), row)
    listed = ",\n".join(f"  {json.dumps(asdict(row))}" for row in rows.values())
    arguments.json.write_text(f"[\n{listed}\n]\n")
    print(f"{len(rows)} sets of {', '.join(path.name for path in sorted(arguments.rounds))}: {arguments.json}")


if __name__ == "__main__":
    main()
