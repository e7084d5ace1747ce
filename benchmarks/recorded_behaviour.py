"""Record the observable behaviour of timedrun through its command line; diff(1) compares the records of two versions.

Usage: python benchmarks/recorded_behaviour.py OUT.json [--logs FOLDER] [--cifar10 FOLDER] [--shakespeare FILE]
           [--wikipedia FILE --wikipedia-evaluation FILE] [--jobs 2]

Three things are recorded: every config as `timedrun show` prints it; short runs with a fixed seed on one CPU thread a
rank, with their logs (times left out), their evaluations and the SHA-256 of the state that each ended in; and the
verdicts and scores of the real logs in --logs. Data that is not given is not run on, and the two records then differ.
--cifar10 names the binary batches; the text is prepared anew in a temporary folder, and its files are recorded too.

The timedrun beside the Python that runs this file is taken. Two records on one machine and one version of torch are
equal; the last bits of weights depend on both.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TIMEDRUN = str(Path(sys.executable).parent / "timedrun")
PREFIX = ":::MLLOG "

MEASURED = {
    *("throughput", "first_throughput", "later_throughput", "seconds", "share", "elapsed_ms"),
    "ledger_head",
}
"""Fields of an event's value and metadata, and of what `prepare` says, that are measured and differ from run to run:
`share` is that of the cold start in a run's time, and the ledger's digest covers times."""
PLACES = {"file", "lineno"}
"""Metadata that says which source line logged an event: not behaviour."""
MEASURED_EVENTS = {"machine_load", "ledger_entry"}
"""Events whose whole value is measured; their metadata is kept."""

BERT = "--max-samples 160 --schedule.steps 10 --schedule.warmup-steps 2 --evaluation.first 80 --evaluation.every 80"
GPT = "--max-samples 72 --schedule.steps 6 --schedule.warmup-steps 2 --evaluation.first 36 --evaluation.every 36"
WIKIPEDIA = "--max-samples 128 --schedule.steps 4 --schedule.warmup-steps 2 --evaluation.first 128"
# One epoch is the least that a run on images trains; a narrow model makes it seconds.
CIFAR10 = "--schedule.epochs 1 --schedule.warmup-epochs 0.2 --model.layers 1 --model.widths 4 --global-batch 1000"


@dataclass(frozen=True)
class Run:
    """One run to record, and the data that it needs: "" where timedrun brings it."""

    benchmark: str
    data: str
    config: str
    settings: str = ""
    ranks: int = 1
    needs: str = ""

    @property
    def name(self) -> str:
        return f"{self.data}_{self.config}_{self.ranks}"


RUNS = [
    *(Run("image_classification", "digits", config) for config in ("baseline_2022", "baseline", "methods")),
    Run("image_classification", "digits", "methods", ranks=2),
    Run("image_classification", "synthetic", "smoke"),
    *(Run("language_model", "topics", config, BERT) for config in ("baseline", "baseline_sdpa", "methods")),
    Run("language_model", "topics", "methods", BERT, ranks=2),
    Run("gpt", "shakespeare", "baseline", GPT, 1, "shakespeare"),
    *(
        Run("gpt", "shakespeare", "modern", GPT + " --schedule.cooldown-steps 2", ranks, "shakespeare")
        for ranks in (1, 2)
    ),
    *(
        Run("language_model", "wikipedia_small", config, WIKIPEDIA, 1, "wikipedia")
        for config in ("baseline", "methods")
    ),
    *(
        Run("image_classification", "cifar10", config, CIFAR10, 1, "cifar10")
        for config in ("resnet8_baseline", "resnet8_methods")
    ),
]


def printed(*arguments: str, folder: Path) -> Any:
    """Run timedrun in `folder`, with a cache of its own there, and return its exit code and the JSON that it prints;
    where it prints none, its words on standard error."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / ".cache")}
    command = [TIMEDRUN, *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    try:
        return {"exit_code": done.returncode, "printed": json.loads(done.stdout)}
    except json.JSONDecodeError:
        return {"exit_code": done.returncode, "error": done.stderr.replace(str(folder), "FOLDER").splitlines()[-20:]}


def without_measured(value: Any) -> Any:
    """Return `value` less every field of it, at any depth, that is measured or names a source line."""
    if isinstance(value, dict):
        return {key: without_measured(item) for key, item in value.items() if key not in MEASURED | PLACES}
    return [without_measured(item) for item in value] if isinstance(value, list) else value


def events(log: Path) -> list[list[Any]]:
    """Return the events of `log` in order, each as type, key, value and metadata, without times and places."""
    read = [json.loads(line.removeprefix(PREFIX)) for line in log.read_text().splitlines() if line.startswith(PREFIX)]
    items = []
    for event in read:
        if event["key"] == "tracked_stats":  # as often as the clock says
            continue
        value = None if event["key"] in MEASURED_EVENTS else without_measured(event["value"])
        items.append([event["event_type"], event["key"], value, without_measured(event["metadata"])])
    return items


def record_run(run: Run, data: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Record one run: its exit code, its answer, its log, its evaluations, its data and the state that it ended in."""
    place = ["--data-folder", str(data[run.needs])] if run.needs else []
    how = ["--ranks", str(run.ranks), "--threads", "1", "--results", f"runs/{run.name}", "--seed", "7"]
    names = [run.benchmark, run.config, "--data", run.data]
    answer = printed("run", *names, *place, *how, *run.settings.split(), folder=folder)
    for measured in ("minutes", "words"):  # words holds the run's seconds
        answer.get("printed", {}).pop(measured, None)
    results = folder / "runs" / run.name
    provenance = results / "run_0" / "provenance.json"
    came_from = json.loads(provenance.read_text()) if provenance.exists() else {}
    log = events(results / "result_0.txt") if (results / "result_0.txt").exists() else []
    return {
        **answer,
        "evaluations": [[metadata, value] for _, key, value, metadata in log if key == "eval_accuracy"],
        "data": came_from.get("data"),
        "final_state": came_from.get("final_state"),
        "files": sorted(str(path.relative_to(results)) for path in results.rglob("*") if path.is_file()),
        "log": log,
    }


def prepare(benchmark: str, config: str, texts: list[str], store: Path) -> dict[str, Any]:
    """Prepare a store of text and record what `prepare` says of it and the SHA-256 of its files."""
    done = printed("prepare", benchmark, config, "--data-folder", store.name, *texts, folder=store.parent)
    files = sorted(path for path in store.rglob("*") if path.is_file())
    digests = {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {**without_measured(done), "files": digests}


def record(given: argparse.Namespace) -> dict[str, Any]:
    with TemporaryDirectory() as made, ThreadPoolExecutor(given.jobs) as pool:
        folder = Path(made).resolve()
        places = {"shakespeare": folder / "shakespeare", "wikipedia": folder / "wikipedia", "cifar10": given.cifar10}
        data = {name: place.resolve() for name, place in places.items() if vars(given)[name]}
        prepared = {}
        if "shakespeare" in data:
            texts = ["--text", str(given.shakespeare.resolve())]
            prepared["shakespeare"] = prepare("gpt", "shakespeare_baseline", texts, data["shakespeare"])
        if "wikipedia" in data:
            texts = ["--text", str(given.wikipedia.resolve())]
            texts += ["--evaluation-text", str(given.wikipedia_evaluation.resolve())]
            prepared["wikipedia"] = prepare("language_model", "wikipedia_small_baseline", texts, data["wikipedia"])
        verdicts: dict[str, Any] = {}
        if given.logs:  # asked for in their folder, so that paths are relative to it
            verdicts["check"] = printed("check", "--no-official", ".", folder=given.logs)
            verdicts["score"] = printed("score", ".", folder=given.logs)
        listed = printed("list", folder=folder)
        configs = [
            (benchmark["benchmark"], config) for benchmark in listed["printed"] for config in benchmark["configs"]
        ]

        def each(function: Callable[..., Any], jobs: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
            waiting = {name: pool.submit(timed, name, function, *arguments) for name, arguments in jobs.items()}
            return {name: value.result() for name, value in waiting.items()}

        def shown(benchmark: str, config: str) -> Any:
            return printed("show", benchmark, config, folder=folder)

        runs = {run.name: (run, data, folder) for run in RUNS if not run.needs or run.needs in data}
        return {
            "list": listed,
            "show": each(shown, {f"{benchmark} {config}": (benchmark, config) for benchmark, config in configs}),
            "prepared": prepared,
            "runs": each(record_run, runs),
            "verdicts": verdicts,
        }


def timed(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `function` returns, and say on standard error how long it took."""
    start = time.monotonic()
    result = function(*arguments)
    print(f"{time.monotonic() - start:6.1f} s  {name}", file=sys.stderr, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for option in ("--logs", "--cifar10", "--shakespeare", "--wikipedia", "--wikipedia-evaluation"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if bool(given.wikipedia) != bool(given.wikipedia_evaluation):
        parser.error("--wikipedia and --wikipedia-evaluation go together")
    given.out.write_text(json.dumps(record(given), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
