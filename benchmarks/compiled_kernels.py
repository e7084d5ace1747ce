"""Generate the GPU kernels of compiled models and assemble them for an H100 (sm_90), without a GPU.

Usage: python benchmarks/compiled_kernels.py [bert] [images]

BERT-Large's layers and a ResNet are traced with fake tensors, Inductor generates their code, and Triton's ptxas
assembles one launch configuration of each kernel. Ends with an error if a graph breaks, the sizes of a run take more
graphs than they should, or a depthwise convolution is left to cuDNN. Traced under the CPU's autocast, whose list of
float32 operations is not CUDA's: launches are close to a GPU's, not equal. Needs a CUDA build of torch, no driver.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch._inductor.config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from image_classification.model import RESNET50, ResNet
from language_model import attention, encoder
from language_model.collator import MaskedBatch
from language_model.configs import ALL_SPEED_UPS
from language_model.settings import BertArchitecture
from timedrun.methods import BlurPool

CUDA = torch.device("cuda:0")
H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    total_memory=80 << 30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20,
)
NUMBERS = count()
Graph = tuple[str, torch.fx.GraphModule]
"""forward, backward or inference; the graph."""


def capture(graphs: list[Graph]) -> Any:
    """Return a backend of torch.compile that adds to `graphs` what it is given, partitioned as for Inductor."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    def keep(kind: str, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append((kind, graph))
        return make_boxed_func(graph.forward)

    def partition(joint: Any, inputs: Any, **options: Any) -> Any:
        joint_graph_passes(joint)
        return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)

    return aot_autograd(
        fw_compiler=partial(keep, "forward"),
        bw_compiler=partial(keep, "backward"),
        inference_compiler=partial(keep, "inference"),
        decompositions=select_decomp_table,
        partition_fn=partition,
    )


def bert() -> Iterator[tuple[str, list[Graph]]]:
    """Yield the graphs of each region of BERT-Large, over three numbers of tokens."""
    graphs: list[Graph] = []
    known = attention.obstacle
    regions = cache(partial(torch.compile, backend=capture(graphs), fullgraph=True, dynamic=True))
    with (
        patch.object(attention, "obstacle", lambda name, *rest: None if name == "varlen" else known(name, *rest)),
        patch.object(encoder, "region", regions),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        model = encoder.Bert(BertArchitecture(layers=3), replace(ALL_SPEED_UPS, attention="varlen"))
        model.compile()
        for tokens, masked in ((14_336, 2_850), (14_208, 2_801), (15_360, 3_001)):
            rows, predicted = torch.zeros(tokens, dtype=torch.int64), torch.zeros(masked, dtype=torch.int64)
            ends = torch.zeros(58, dtype=torch.int32)
            batch = MaskedBatch(
                *(rows, rows, rows, ends, ends[1:], predicted, predicted),
                longest=512,
                padded=False,
                row_multiple=128,
                global_samples=448,
                global_masked=22_000,
            )
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(batch)
            loss.backward()
    require(len(graphs) == 10, f"5 regions, forward and backward, make {len(graphs)} graphs over three batches")
    names = ("embeddings", "query, key, value", "rest of a layer", "rest of the last layer", "head and loss")
    yield from zip(names, (graphs[first : first + 2] for first in range(0, 10, 2)), strict=True)


def images() -> Iterator[tuple[str, list[Graph]]]:
    """Yield the graphs of a small ResNet-50 with BlurPool, traced at three input sizes, at the last one."""
    graphs: list[Graph] = []
    blurpool = importlib.import_module("timedrun.methods.blurpool")
    sliced = patch.object(blurpool, "blur", lambda inputs, _, stride=1: blurpool.blur_by_slices(inputs, stride))
    model, _ = BlurPool().model(ResNet(replace(RESNET50, layers=(1, 1, 1, 1), initialisation="kaiming")))
    model.to(memory_format=torch.channels_last)
    with FakeTensorMode(allow_non_fake_inputs=True), sliced:  # as on CUDA
        model.compile(backend=capture(graphs), dynamic=False, fullgraph=True)
        for size in (96, 128, 160):
            x = torch.zeros(64, 3, size, size).contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().sum()
            loss.backward()
    require(len(graphs) == 6, f"three sizes, forward and backward, make {len(graphs)} graphs")
    yield "ResNet at 160 px", graphs[4:]


@contextmanager
def fake_h100() -> Iterator[None]:
    """Let Inductor and Triton find an H100 where there is no driver."""
    import torch.utils._triton
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget

    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda *arguments: 0,
        is_active=lambda: True,
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": H100,
        "get_device_capability": (9, 0),
        "get_compute_capability": 90,
        "is_bf16_supported": True,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "synchronize": None,
        "set_device": None,
        "_lazy_init": None,
    }
    with ExitStack() as patched:
        for place in (torch.cuda, CudaInterface, CudaInterface.Worker):
            for name, value in answers.items():
                if hasattr(place, name):
                    answer = partial(lambda value, *arguments, **options: value, value)
                    patched.enter_context(
                        patch.object(place, name, answer if place is torch.cuda else staticmethod(answer))
                    )
        for module in [one for name, one in sys.modules.items() if name.startswith("torch.")]:
            if "has_triton" in vars(module):
                patched.enter_context(patch.object(module, "has_triton", lambda *arguments, **options: True))
        patched.enter_context(patch.object(torch._subclasses.fake_tensor, "init_gpu_context", lambda device: None))
        patched.enter_context(patch.object(torch.utils._triton, "triton_hash_with_backend", lambda *arguments: "h100"))
        patched.enter_context(patch.object(triton_helpers, "set_driver_to_gpu", lambda: None))
        patched.enter_context(patch.object(triton.runtime.driver, "_active", driver))
        # Without cuDNN's answer convolutions would be laid out as NCHW.
        channels_last = lambda *arguments, **options: torch.channels_last  # noqa: E731
        patched.enter_context(patch.object(torch._C, "_conv_determine_backend_memory_format", channels_last))
        patched.enter_context(torch._inductor.config.patch(compile_threads=1))
        yield


def generate(kind: str, traced: torch.fx.GraphModule) -> str:
    """Return Inductor's code for the graph on CUDA."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    graph = copy.deepcopy(traced)
    for node in graph.graph.nodes:
        node.args = tuple(CUDA if isinstance(value, torch.device) else value for value in node.args)
        node.kwargs = {name: CUDA if name == "device" and value else value for name, value in node.kwargs.items()}
    values = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    mode = next(value.fake_mode for value in values if isinstance(value, FakeTensor))
    with mode:
        inputs = [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CUDA)
            if isinstance(value, torch.Tensor)
            else value
            for value in values
        ]
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
    with V.set_fake_mode(mode):
        post_grad_passes(graph, kind != "forward")
        graph.recompile()
        lowering = GraphLowering(graph, example_inputs=inputs, shape_env=mode.shape_env, is_backward=kind == "backward")
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]), DebugContext():
            lowering.run(*inputs)
            code, _ = lowering.codegen()
    return str(getattr(code, "value", code))


def assemble(code: str, folder: Path) -> int:
    """Assemble one launch configuration of each Triton kernel defined in `code`; return their number."""
    found = re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)'''", code, re.DOTALL)
    for name, source in found:
        path = folder / f"kernel_{next(NUMBERS)}.py"
        path.write_text(source)
        specification = importlib.util.spec_from_file_location(path.stem, path)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        kernel = getattr(module, name)
        kernel.configs = kernel.configs[:1]
        kernel._precompile_worker()
        require(len(kernel.compile_results) == 1, f"{name} was not assembled")
    return len(found)


class Kernels(NamedTuple):
    """Kernels that Inductor makes of a graph."""

    launches: int
    """Of Triton kernels."""
    assembled: int
    """Different ones."""
    library: Counter[str]
    """Calls of library kernels by name."""
    grouped: list[str]
    """Calls of grouped convolutions, a depthwise one's among them."""


def kernels(kind: str, graph: torch.fx.GraphModule, folder: Path) -> Kernels:
    """Generate and assemble the kernels of a graph; to be called within `fake_h100`."""
    code = generate(kind, graph)
    call = code[code.index("def call(") :]
    return Kernels(
        launches=len(re.findall(r"triton_\w+\.run\(", call)),
        assembled=assemble(code, folder),
        library=Counter(re.findall(r"(?:extern_kernels|torch\.ops\.aten)\.(\w+)(?:\.\w+)?\(", call)),
        grouped=re.findall(r"convolution\w*\([^\n]*groups=(?!1\b)\d+", call),
    )


def obstacle() -> str:
    """Return why no kernels can be generated here, or an empty text."""
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return f"torch {torch.__version__} has no CUDA or no Triton; install a CUDA build of torch"
    return ""


def require(condition: bool, message: str) -> None:
    """Exit with `message` unless `condition`."""
    if not condition:
        raise SystemExit(f"failed: {message}")


def main() -> None:
    if reason := obstacle():
        raise SystemExit(f"skipped: {reason}.")
    chosen = sys.argv[1:] or ["bert", "images"]
    begun = time.process_time()
    traced = [part for name in chosen for part in {"bert": bert, "images": images}[name]()]
    print(f"traced without a graph break in {time.process_time() - begun:.0f} s of CPU")
    with fake_h100(), tempfile.TemporaryDirectory() as folder:
        for name, graphs in traced:
            for kind, graph in graphs:
                found = kernels(kind, graph, Path(folder))
                require(not found.grouped, f"{name} {kind}: depthwise convolutions left to cuDNN: {found.grouped[:2]}")
                calls = ", ".join(f"{many} {one}" for one, many in found.library.items())
                launched = f"{found.launches:3} launches of {found.assembled} kernels"
                print(f"{name:24} {kind:9} {launched}, library: {calls or 'none'}")
    print(f"{time.process_time() - begun:.0f} s of CPU")


if __name__ == "__main__":
    main()
