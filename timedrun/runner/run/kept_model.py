"""The evaluated weights of a finished run as files beside its log: the setting `keep_model`."""

import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from torch import Tensor, nn

from judging.ground.errors import DataError, UsageError
from judging.ground.result_files import digests, read_object, write_json
from timedrun.methods.training.train_state import Stateful
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.config import RunConfig, dump
from timedrun.runner.config_choice import read_config

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "run_config.json"


def evaluated_weights(parts: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """Return copies on the CPU of the weights that an evaluation measures, averages in their place, by their names in
    the model's state. All ranks call it, because the parts of a sharded model are gathered."""
    model = next(part for part in parts.values() if isinstance(part, nn.Module))
    evaluation = getattr(parts.get("methods"), "evaluation", None)
    with evaluation(model) if evaluation else nullcontext():
        state = model.state_dict()
        whole = {name: getattr(tensor, "full_tensor", lambda kept=tensor: kept)() for name, tensor in state.items()}
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in whole.items()}


def write(weights: dict[str, Tensor], benchmark: Benchmark, config: RunConfig, folder: Path) -> dict[str, str]:
    """Write the weights and the config to `folder`, which appears whole or not at all, with what the benchmark's
    `export.export` adds in the format of another library. Return the SHA-256 of each file by its path in `folder`."""
    from safetensors.torch import save_file

    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        write_json(partial / CONFIG, dump(config))
        if export := benchmark.hook("export", "export"):
            export(config, weights, partial)
        kept = digests(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return kept


def load_model(folder: str | Path) -> nn.Module:
    """Return the network that a run kept in `folder`, on the CPU and in evaluation mode.

    Raises UsageError if the folder keeps no model or its benchmark cannot build one, and DataError if the weights are
    not those of the network.
    """
    path = Path(folder, CONFIG)
    if not path.is_file():
        raise UsageError(f"{folder} has no {CONFIG}, so it keeps no model; pass the folder `model` of a kept run.")
    require_safetensors()
    from safetensors.torch import load_file

    benchmark = find(str(read_object(path).get("benchmark")))
    config = read_config(benchmark, path)
    build = benchmark.hook("export", "model")
    if build is None:
        raise UsageError(f"{benchmark.name} has no export.model(config), which builds the network of a kept model.")
    network: nn.Module = build(config)
    try:
        network.load_state_dict(load_file(Path(folder, WEIGHTS)))
    except (RuntimeError, OSError) as error:
        raise DataError(f"{folder}/{WEIGHTS} does not fit the network of its config: {error}") from None
    return network.eval()


def require_safetensors() -> None:
    """Raise UsageError without safetensors, which writes kept models."""
    if find_spec("safetensors") is None:
        raise UsageError("keep_model needs safetensors: pip install 'timedrun[train]'; no model would be kept.")
