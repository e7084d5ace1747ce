"""Compiled models have the graphs, launches and host synchronizations that a fast step has; no test needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.compiled_kernels import Graph, bert, fake_h100, images, kernels, obstacle
from benchmarks.gpu.fineweb import TINY, TINY_OF, write_tiny_shards
from language_model import encoder
from timedrun.analysis.profiled_run import ProfiledRun, StepPlan, profiled
from timedrun.benchmark import find
from timedrun.config_choice import config_of

pytestmark = pytest.mark.timeout(300)
aten = torch.ops.aten
LAUNCHES = {
    "embeddings": (1, 6),
    "query, key, value": (2, 4),
    "rest of a layer": (9, 11),
    "rest of the last layer": (10, 19),
    "head and loss": (7, 11),
    "ResNet at 160 px": (102, 98),
}
"""Most launches of Triton kernels, forward and backward: those of torch 2.11."""
MATRIX_PRODUCTS = {"embeddings": 0, "query, key, value": 1, "rest of a layer": 3, "rest of the last layer": 3}
"""Library calls of a region's forward pass."""


@pytest.fixture(scope="module")
def bert_graphs() -> dict[str, list[Graph]]:
    return dict(bert())  # ends the test if a graph breaks, or another number of rows is traced again


@pytest.fixture(scope="module")
def image_graphs() -> dict[str, list[Graph]]:
    return dict(images())


def test_berts_regions_are_traced_once_and_whole_for_three_numbers_of_tokens(
    bert_graphs: dict[str, list[Graph]],
) -> None:
    assert list(bert_graphs) == [name for name in LAUNCHES if name != "ResNet at 160 px"]
    assert {tuple(kind for kind, _ in graphs) for graphs in bert_graphs.values()} == {("forward", "backward")}
    for name, count in MATRIX_PRODUCTS.items():
        (_, forward), _ = bert_graphs[name]
        assert sum(node.target in (aten.mm.default, aten.addmm.default) for node in forward.graph.nodes) == count


def test_a_region_that_breaks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = encoder.gelu

    def breaking(x: torch.Tensor, activation: Any) -> torch.Tensor:
        torch._dynamo.graph_break()
        return original(x, activation)

    monkeypatch.setattr(encoder, "gelu", breaking)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        list(bert())


def test_a_resnet_with_blurpool_is_traced_once_for_each_size_without_a_depthwise_convolution(
    image_graphs: dict[str, list[Graph]],
) -> None:
    (((_, forward), (_, backward)),) = image_graphs.values()
    convolutions = [node for node in forward.graph.nodes if node.target is aten.convolution.default]
    assert len(convolutions) == 17 and {node.args[-1] for node in convolutions} == {1}  # groups
    assert not any(node.target is aten.convolution.default for node in backward.graph.nodes)


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which the pretended one would hide")
@pytest.mark.parametrize("name", LAUNCHES)
def test_the_kernels_of_an_h100_are_assembled_and_few(
    bert_graphs: dict[str, list[Graph]], image_graphs: dict[str, list[Graph]], name: str, tmp_path: Path
) -> None:
    with fake_h100():
        found = [kernels(kind, graph, tmp_path) for kind, graph in {**bert_graphs, **image_graphs}[name]]
    assert all(one.assembled and not one.grouped for one in found)
    launches = [one.launches for one in found]
    assert all(own <= most for own, most in zip(launches, LAUNCHES[name], strict=True)), launches
    if name in MATRIX_PRODUCTS:
        assert sum(found[0].library.values()) == MATRIX_PRODUCTS[name]


class Synchronisations(TorchDispatchMode):
    """Record operators whose results the host needs: on a GPU it would wait for the device."""

    WAITING = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.equal)
    INDEXING = (aten.index, aten.index_put, aten.index_put_)

    def __init__(self) -> None:
        super().__init__()
        self.recording = False
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator = func.overloadpacket
        masks = operator in self.INDEXING and any(one is not None and one.dtype == torch.bool for one in args[1])
        if self.recording and (masks or operator in self.WAITING):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


Waiting = Callable[..., list[str]]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """Return a function that trains five steps of a config and returns the operators that wait in the last four."""

    def one_hot(labels: torch.Tensor, classes: int) -> torch.Tensor:
        return torch.eye(classes, dtype=torch.int64)[labels]

    monkeypatch.setattr("torch.nn.functional.one_hot", one_hot)  # torch's checks the labels on the host, on a CPU alone

    def operators(benchmark: str, name: str, data: str, *overrides: str, folder: Path | None = None) -> list[str]:
        mode, original, steps = Synchronisations(), ProfiledRun.step_done, 0

        def step_done(self: ProfiledRun, samples: int, loss: torch.Tensor) -> None:
            nonlocal steps
            mode.recording = False  # the run shows a loss at intervals
            original(self, samples, loss)
            mode.recording, steps = True, steps + 1

        monkeypatch.setattr(ProfiledRun, "step_done", step_done)
        config = config_of(find(benchmark), name, data, ["--precision", "bf16", *overrides])
        plan = StepPlan(positions=(0.5,), chunks=1, chunk=3, skip=2, timed=False, evaluate=False)
        with mode:
            profiled(find(benchmark), config, plan, data_folder=folder)
        assert steps == 5
        return mode.found

    return operators


@pytest.mark.parametrize("name", ["baseline", "methods"])
def test_a_step_of_images_never_waits_for_the_device(waiting: Waiting, name: str) -> None:
    assert waiting("image_classification", name, "digits") == []


def test_a_step_of_bert_never_waits_for_the_device(waiting: Waiting) -> None:
    assert waiting("language_model", "methods", "topics", "--speed.attention", "sdpa_padded") == []


def test_a_step_of_gpt_never_waits_for_the_device(waiting: Waiting, tmp_path: Path) -> None:
    size = ("--model.vocabulary", str(write_tiny_shards(tmp_path / "shards")))
    given = (*TINY, *TINY_OF["methods"], *size)
    assert waiting("fineweb", "methods", "fineweb", *given, folder=tmp_path / "shards") == []


def test_transformers_waits_for_the_device_once_a_forward_pass(waiting: Waiting) -> None:
    assert waiting("language_model", "baseline", "topics") == ["aten._local_scalar_dense.default"] * 4  # of its mask
