"""Fixtures that several folders of tests share, and the hooks that order and select tests."""

import functools
import gc
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from tests import forked_python
from timedrun.cli import main

Answered = Callable[..., tuple[str, str]]
Printed = Callable[..., str]
Told = Callable[..., Any]

TESTS = Path(__file__).parent
PUBLISHED_LOGS = "TIMEDRUN_PUBLISHED_LOGS"
"""Environment variable: the folder of larger archives of published logs, which some tests use where it is set."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` without a GPU and `results` in an image; let a pytest-xdist worker begin with the modules
    that start runs."""
    for item in [item for item in items if item.get_closest_marker("gpu")]:
        import torch  # the tests of logs and scores run without

        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    if not (TESTS.parent / "results/README.md").exists():
        for item in [item for item in items if item.get_closest_marker("results")]:
            item.add_marker(pytest.mark.skip(reason="results/ is not here, as in an image"))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not starts_runs(item.path))


def pytest_configure(config: pytest.Config) -> None:
    """Restore the default action of SIGHUP, which tested processes inherit; nohup would leave it ignored. Fork them.
    Examples have no deadlines: the machine may be busy."""
    hypothesis.settings.register_profile("timedrun", deadline=None)
    hypothesis.settings.load_profile("timedrun")
    gc.disable()  # of no use while modules are imported, and a seventh of that time
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    forked_python.install()
    config.add_cleanup(lambda: shutil.rmtree(forked_python.ENVIRONMENTS))


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_runtest_setup() -> None:
    """Let full collections, which each timed run begins with, leave out the modules: they take 0.2 s otherwise."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all modules that start runs to one worker: two of them at a time would compete for two processors."""
    from xdist.scheduler import LoadFileScheduling

    class OneForRuns(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module: str = super()._split_scope(nodeid)
            return "runs" if starts_runs(config.rootpath / module) else module

    config.option.loadscopereorder = False
    return OneForRuns(config, log)


@functools.cache
def starts_runs(module: Path) -> bool:
    """Return True if `module` tests timedrun's own processes."""
    return "timedrun" in module.relative_to(TESTS).parts and "mark.processes" in module.read_text()


@functools.cache
def promised_tests() -> dict[str, list[str]]:
    """Return the tests ("module::function") that hold each promise of docs/promises.md, by its name ("P1")."""
    text = (TESTS.parent / "docs" / "promises.md").read_text()
    rows = re.findall(r"^\| (P\d+)\. .* \| (.*) \|$", text, flags=re.MULTILINE)
    return {name: re.findall(r"`([\w/]+::\w+)`", tests) for name, tests in rows}


def refuse_skipped_promise(report: pytest.TestReport) -> None:
    """Fail the report of a skipped test that holds a promise: on CI each promise must be tested."""
    test = report.nodeid.partition("[")[0].removeprefix("tests/").replace(".py::", "::")
    held = [name for name, tests in promised_tests().items() if test in tests]
    if report.skipped and held:
        report.outcome = "failed"
        report.longrepr = f"{test} holds {', '.join(held)} of docs/promises.md and was skipped: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Apply `refuse_skipped_promise` where the environment says CI=true."""
    report = yield
    if os.environ.get("CI") == "true":
        refuse_skipped_promise(report)
    return report


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the worker processes of a preparation from this one, which has imported torch; test_worker_pool.py has those
    of the fork server."""
    gc.collect()  # objects of earlier tests may have threads, which a forked process lacks when it collects them
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr("multiprocessing.get_context", lambda _: fork)


@pytest.fixture(scope="session")
def published_sample(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """MosaicML's submission folders of v2.0 and v2.1 by round, with two runs of each set."""
    return _unpacked(TESTS / "mlevents" / "published_logs", tmp_path_factory.mktemp("published_sample"))


@pytest.fixture(scope="session")
def published_rounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same with all runs; skips the test unless `PUBLISHED_LOGS` names the folder of the archives."""
    if PUBLISHED_LOGS not in os.environ:
        pytest.skip(f"{PUBLISHED_LOGS} does not name a folder with mosaicml-v2.0.tar.xz and mosaicml-v2.1.tar.xz")
    return _unpacked(Path(os.environ[PUBLISHED_LOGS]), tmp_path_factory.mktemp("published_rounds"))


def _unpacked(archives: Path, folder: Path) -> dict[str, Path]:
    for round_ in ("v2.0", "v2.1"):
        with tarfile.open(archives / f"mosaicml-{round_}.tar.xz") as archive:
            for member in filter(tarfile.TarInfo.isfile, archive):  # extractall has no safe filter before Python 3.11.4
                file = folder / round_ / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]  # is a file
    return {round_: folder / round_ / "MosaicML" for round_ in ("v2.0", "v2.1")}


@pytest.fixture(scope="session")
def torchvision() -> Iterator[ModuleType]:
    """torchvision, also beside a CPU build of torch, for which its wheel has no operators: two are then declared.
    scripts/setup.sh has such a one in a folder of its own."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1] / ".venv" / "torchvision")])
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    library = None
    try:
        module = importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")  # must outlive every use of torchvision
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        module = importlib.import_module("torchvision")
    patch.undo()  # it is no distribution of the environment
    yield module
    del library


@pytest.fixture(scope="session")
def trainers(request) -> None:
    """Let transformers and Lightning import, which need no torchvision and fail beside one that does."""
    if importlib.util.find_spec("torchvision") is not None:
        request.getfixturevalue("torchvision")


@pytest.fixture
def answered(capsys: pytest.CaptureFixture[str]) -> Answered:
    """Runs a command, which must exit with `code`, and returns its output and its words on standard error."""

    def run(*words: object, code: int) -> tuple[str, str]:
        try:
            ended = main([*map(str, words)])
        except SystemExit as of_parser:
            ended = int(of_parser.code or 0)
        assert ended == code
        return tuple(capsys.readouterr())

    return run


@pytest.fixture
def printed(answered: Answered) -> Printed:
    """Runs a command, which must exit with `code`, and returns its output."""
    return lambda *words, code=0: answered(*words, code=code)[0]


@pytest.fixture
def told(printed: Printed) -> Told:
    """Runs a command with --json, which must exit with `code`, and returns the values that it prints."""
    return lambda *words, code=0: json.loads(printed(*words, "--json", code=code))


@pytest.fixture
def refused(answered: Answered) -> Printed:
    """Runs a command, which must fail with `code`, and returns what it says of it."""
    return lambda *words, code=2: answered(*words, code=code)[1]
