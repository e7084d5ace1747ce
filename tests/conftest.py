"""Fixtures that several folders of tests share."""

import functools
import importlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none. A worker of pytest-xdist begins with the modules that start
    runs."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not starts_runs(item.path))


def pytest_configure() -> None:
    """A hangup is not ignored, as it would be under nohup: what is tested takes it over from who started it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker takes all modules that start runs, one after another, since two of those at a time would fight for two
    processors; the others are shared out."""
    from xdist.scheduler import LoadFileScheduling

    class OneForRuns(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module: str = super()._split_scope(nodeid)
            return "runs" if starts_runs(config.rootpath / module) else module

    config.option.loadscopereorder = False
    return OneForRuns(config, log)


@functools.cache
def starts_runs(module: Path) -> bool:
    """Whether there are tests of timedrun's own processes in it."""
    return "timedrun" in module.relative_to(Path(__file__).parent).parts and "mark.processes" in module.read_text()


@pytest.fixture(scope="session")
def torchvision() -> Iterator[ModuleType]:
    """torchvision, also beside a CPU build of torch, for which its wheel has no operators: two are then declared."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    library = None
    try:
        module = importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # must outlive every use of torchvision
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        module = importlib.import_module("torchvision")
    yield module
    del library
