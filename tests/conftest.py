"""Fixtures that several folders of tests share."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none. Under pytest-xdist one worker takes those that start
    processes, one after another and first, since they mostly wait; all others go by their modules."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    if hasattr(config, "workerinput"):
        for item in items:
            group = "processes" if item.get_closest_marker("processes") else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))
        items.sort(key=lambda item: item.get_closest_marker("processes") is None)


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
