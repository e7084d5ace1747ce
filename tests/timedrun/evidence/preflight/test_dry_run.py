"""A dry run's log equals a real one in everything the run does not decide, and is repeatable."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from image_classification.configs import synthetic_smoke
from language_model.configs import topics_methods
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.record import RunRecord
from timedrun.evidence.preflight.dry_run import SimulatedClock, write_log, write_set
from timedrun.runner.benchmark import find
from timedrun.runner.config import RunConfig
from timedrun.runner.distributed.process_group import ProcessGroup

pytestmark = pytest.mark.usefixtures("stay_frozen")
TOPICS = topics_methods()
SMALL = {
    "images": synthetic_smoke(),
    "text": replace(TOPICS, max_samples=32, evaluation=replace(TOPICS.evaluation, target=0.0, every=16, first=16)),
}
"""Configs that run in a second: two evaluations, of which the last counts."""


def ranks(world_size: int = 1) -> ProcessGroup:
    return ProcessGroup(0, world_size, 0, torch.device("cpu"))


def dry_run_logs(config: RunConfig, folder: Path) -> list[Path]:
    benchmark = find(config.benchmark)
    plan = benchmark.plan(config, ranks(), None)
    return write_set(benchmark, config, plan, folder / "set", runs=2, ranks=ranks(), platform="1xCPU")


def announced_and_course(log: RunRecord) -> tuple[list[Any], list[Any]]:
    """Return the events up to run_start, and the distinct keys and names of metadata from there on."""
    parts = [event.line <= log.started.line for event in log.events].count(True)
    events, names = log.events[:parts], [(event.key, {*event.metadata} - {"reason"}) for event in log.events[parts:]]
    announced = [(event.key, event.event_type, event.value, event.metadata) for event in events]
    return announced, [name for number, name in enumerate(names) if name not in names[:number]]


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
def test_a_dry_run_logs_a_real_ones_events(config, tmp_path, make_run, monkeypatch):
    monkeypatch.setattr("timedrun.runner.run.train_stats.LOSS_SECONDS", float("inf"))  # however long an epoch takes
    benchmark = find(config.benchmark)
    with make_run(config, benchmark.spec) as run:
        benchmark.train(config, run)
    real = record.read(tmp_path / "result_0.txt")
    made = record.read(dry_run_logs(config, tmp_path)[0])
    assert announced_and_course(made) == announced_and_course(real)
    assert made.status == real.status == keys.SUCCESS


def test_the_same_config_gives_the_same_bytes_each_run_its_seed_and_its_files(tmp_path):
    logs = dry_run_logs(SMALL["images"], tmp_path)
    again = dry_run_logs(SMALL["images"], tmp_path / "again")
    assert [log.read_bytes() for log in logs] == [log.read_bytes() for log in again]
    assert [record.read(log).seed for log in logs] == [1, 2]
    for number in range(2):
        side = tmp_path / "set" / f"run_{number}"
        assert {"config.json", "system.json", "environment.txt", "provenance.json"} <= {p.name for p in side.iterdir()}
        assert json.loads((side / "config.json").read_text())["seed"] == number + 1


def test_a_dry_run_neither_waits_nor_touches_the_page_cache_and_no_budget_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("slept"))
    monkeypatch.setattr("os.fsync", lambda descriptor: pytest.fail("waited for a disk"))
    monkeypatch.setattr("os.sync", lambda: pytest.fail("touched the page cache"))
    benchmark = find("image_classification")
    for budget in (0.0, 1e-3):  # a shorter one has a faster clock
        config = replace(benchmark.config("imagenet_baseline"), clear_cache=True, budget_minutes=budget)
        path = tmp_path / f"budget_{budget}.txt"
        write_log(benchmark.spec, config, benchmark.plan(config, ranks(8), None), path, "x", SimulatedClock())
        log = record.read(path)
        assert log.value(keys.CACHE_CLEAR) is True and log.status == keys.SUCCESS
        assert (log.minutes > 60) == (budget == 0.0)


@pytest.mark.parametrize(
    ("package", "name", "parameters", "total"),
    [
        ("image_classification", "imagenet_methods", 25_557_032, 28),
        ("language_model", "wikipedia_methods", 335_174_458 + 6 * 1024, 6000 * 448),
        ("language_model.fineweb", "fineweb_baseline", 124_439_808, 19_560 * 512),
        ("language_model.fineweb", "fineweb_methods", 162_184_704 + 3 * 50_257 * 768 + 12, 4000 * 512),
    ],
)
def test_a_dry_run_of_a_large_config_needs_neither_weights_nor_data(package, name, parameters, total, tmp_path):
    benchmark = find(package)
    config = benchmark.config(name)
    plan = benchmark.plan(config, ranks(8), None)
    hyperparameters = plan.run_info["hyperparameters"]
    assert plan.total == total and "--data-folder" in plan.missing
    assert hyperparameters["model_parameters"] == parameters
    spec = benchmark.spec
    write_log(spec, config, plan, tmp_path / "result_0.txt", "x", SimulatedClock())
    report = check(tmp_path / "result_0.txt", spec.ruleset)
    assert [finding for finding in report.findings if finding.level == "error"] == []
    last = record.read(tmp_path / "result_0.txt").quality[-1]
    assert (last.progress, last.value) == (total, config.evaluation.target)
