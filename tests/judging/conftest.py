"""Result sets written by the log writer with a fake clock."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mlevents import keys
from mlevents.package_checker.system_description import unanswered
from mlevents.record import read, result_files
from mlevents.runlog import RunLog
from mlevents.runlog.protocol import Protocol
from mlevents.summary import RunSummary, summarize

WriteRun = Callable[..., Path]
MakeSet = Callable[..., Path]
WriteSet = Callable[..., Path]

ENVIRONMENT = "python 3.11.7\n\ninstalled distributions:\nscikit_learn==1.9.1\ntorch==2.13.0\n"


@pytest.fixture(scope="session", autouse=True)
def bundled_once() -> Iterator[None]:
    """Bundle the explorer's library once: that takes more than a second."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("vl_convert"):
            vl_convert = import_module("vl_convert")
            patch.setattr(vl_convert, "javascript_bundle", functools.cache(vl_convert.javascript_bundle))
        yield


@pytest.fixture(scope="session")
def write_run() -> WriteRun:
    """Writes result_<number>.txt of a run of `minutes` that evaluates `qualities` at even distances: in epochs, or in
    blocks of `samples`, which samples_count counts."""

    def write(
        folder,
        number,
        *,
        minutes=10.0,
        qualities=(0.3, 0.6, 0.761),
        status="success",
        benchmark="resnet",
        platform="1xCPU-baseline",
        start=None,
        samples=0,
        **logged,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"result_{number}.txt"
        begin = 1.8e9 + number * 1e5 if start is None else start
        now = [begin - 5.0]
        facts = {
            keys.SUBMISSION_BENCHMARK: benchmark,
            keys.SUBMISSION_DIVISION: "open",
            keys.SUBMISSION_ORG: "Example",
            keys.SUBMISSION_PLATFORM: platform,
            keys.SUBMISSION_STATUS: "onprem",
            keys.SEED: number + 1,
            keys.GLOBAL_BATCH_SIZE: 64,
            keys.TRAIN_SAMPLES: 1_281_167,
            keys.EVAL_SAMPLES: 10_000 if benchmark == keys.BERT else 50_000,
            keys.CONFIG_NAME: "imagenet_baseline",
        } | logged
        with closing(RunLog(path, clock=lambda: now[0], durable=False)) as log:
            protocol = Protocol(log, keys.SAMPLES_COUNT if samples else keys.EPOCH_NUM)
            protocol.begin({key: value for key, value in facts.items() if value is not None}, cleared=True)
            protocol.end(keys.INIT_STOP)
            now[0] = begin
            protocol.start(keys.RUN_START)
            for epoch, quality in enumerate(qualities, start=1):
                protocol.start_block(epoch, 1, samples * (epoch - 1))
                # Evaluating takes the last tenth of every block.
                now[0] = begin + minutes * 60 * (epoch - 0.1) / len(qualities)
                protocol.start(keys.EVAL_START, **protocol.at((samples or 1) * epoch))
                now[0] = begin + minutes * 60 * epoch / len(qualities)
                protocol.stop_evaluation(quality, (samples or 1) * epoch)
                protocol.stop_block(samples * epoch)
            log.end(keys.RUN_STOP, status=status)
        return path

    return write


@pytest.fixture(scope="session")
def write_set(write_run) -> WriteSet:
    """Writes runs of `times` in minutes with the numbers from 0, and returns their folder."""

    def write(folder: Path, times: Sequence[float] = (10.0, 11.0, 12.0, 13.0, 14.0), **logged: Any) -> Path:
        for number, minutes in enumerate(times):
            write_run(folder, number, minutes=minutes, **logged)
        return folder

    return write


def summaries(folder: Path) -> list[RunSummary]:
    """Return the summaries of all results below `folder`."""
    return [summarize(read(path)) for path in result_files(folder)]


def change_json(*paths: Path, **values: Any) -> None:
    """Change values of the objects in JSON files."""
    for path in paths:
        path.write_text(json.dumps(json.loads(path.read_text()) | values))


def log_loads(path: Path, *blocks: dict[str, Any], lacks: dict[str, str] | None = None, **metadata: Any) -> Path:
    """Write the loads of the blocks of a run into its log, before its end."""
    *lines, stop = path.read_text().splitlines(keepends=True)
    event = json.loads(stop.partition(":::MLLOG ")[2]) | {"key": keys.MACHINE_LOAD, "event_type": "POINT_IN_TIME"}
    event["metadata"] = {"epoch_num": 1, **({"unknown": lacks} if lacks else {}), **metadata}
    loads = [f":::MLLOG {json.dumps(event | {'value': block})}\n" for block in blocks]
    path.write_text("".join([*lines, *loads, stop]))
    return path


@pytest.fixture(scope="session")
def make_set(write_run) -> MakeSet:
    """Writes a whole results folder: logs of `times` in minutes and, beside each, config, system and environment."""

    from image_classification.configs import imagenet_baseline  # here: the tests of scores run without torch
    from timedrun.runner.config import dump
    from timedrun.runner.provenance import system

    def make(folder: Path, *, times: Sequence[float] = (10.0, 11.0, 12.0, 13.0, 14.0), **logged: Any) -> Path:
        platform = logged.setdefault("platform", "1xCPU-baseline")
        for number, minutes in enumerate(times):
            write_run(folder, number, minutes=minutes, **logged)
            side = folder / f"run_{number}"
            side.mkdir()
            config = dump(replace(imagenet_baseline(), seed=number + 1))
            (side / "config.json").write_text(json.dumps(config))
            description = system.describe("Example", platform, ranks=2, device="cpu")
            description |= dict.fromkeys(unanswered(description), "known")
            (side / "system.json").write_text(json.dumps(description))
            (side / "environment.txt").write_text(ENVIRONMENT)
            (side / "provenance.json").write_text(json.dumps({"commit": "unknown", "dirty": "unknown", "ranks": 2}))
        return folder

    return make


@pytest.fixture
def source(tmp_path) -> Path:
    """A source tree of the project's shape, small, without git."""
    return write_source(tmp_path / "source")


def write_source(root: Path) -> Path:
    """Write a source tree of the project's shape, and return it."""
    for name, text in {
        "pyproject.toml": '[project]\nname = "timedrun"\nversion = "0"\n[project.optional-dependencies]\n'
        'digits = ["scikit-learn>=1"]\nvision = ["torchvision"]\ndev = ["torch"]\n',
        "README.md": "source\n",
        "LICENSE": "licence\n",
        "timedrun/__init__.py": "",
        "timedrun/__pycache__/x.pyc": "",
        "timedrun/.hidden": "",
        "logging/mlevents/__init__.py": "",
        "image_classification/__init__.py": '"""The benchmark."""\n',
        "image_classification/model.py": '"""Builds the model.\n\nMore."""\n',
        "language_model/__init__.py": "",
        "constraints.txt": "torch==2.13.0\n",
        "scripts/run_and_time.sh": "#!/bin/sh\n",
        "scripts/test.sh": "#!/bin/sh\n",
        "tests/test_x.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="session")
def published(published_rounds, tmp_path_factory) -> Path:
    """One submission folder of MosaicML's four open-division result sets of MLPerf Training v2.0 and v2.1."""
    folder = tmp_path_factory.mktemp("published") / "MosaicML"
    for round_folder in published_rounds.values():
        shutil.copytree(round_folder, folder, dirs_exist_ok=True)
    return folder
