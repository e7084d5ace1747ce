"""The modules of a benchmark package, as Protocols: what timedrun calls and what it expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from timedrun.runner.config import RunConfig
    from timedrun.runner.distributed.process_group import ProcessGroup
    from timedrun.runner.plan import Plan
    from timedrun.runner.run.timed_run import TimedRun

ConfigT = TypeVar("ConfigT", bound="RunConfig", contravariant=True)
"""The benchmark's own subclass of `RunConfig`."""


class TrainModule(Protocol[ConfigT]):
    """`train.py`, required: the timed run."""

    def train(self, config: ConfigT, run: TimedRun) -> None:
        """Train to `config.evaluation.target` or to the end of the schedule: build, `run.track`, `run.warm_up`,
        `run.start_clock`, and only then read data."""


class RunInfoModule(Protocol[ConfigT]):
    """`run_info.py`, needed by `preflight`: the metadata that `train` logs before the clock starts."""

    def plan(self, config: ConfigT, ranks: ProcessGroup, data_folder: Path | None) -> Plan:
        """Return the run info and the length of a run from a model on the meta device; sizes of data that are missing
        are those the benchmark declares."""


class DatasetsModule(Protocol[ConfigT]):
    """`datasets.py`, and each of its functions, optional: the data before and after the run."""

    def preflight(self, config: ConfigT, folder: Path | None, ranks: int) -> list[str]:
        """Return an error message for each fault of `config` and its data, without reading a sample."""

    def data_digest(self, config: ConfigT, folder: Path | None) -> dict[str, str]:
        """Return the "sha256" of the data and a description "of" what it covers, after run_stop: it may read data."""

    def data_notes(self, config: ConfigT, folder: Path | None, *, whole: bool) -> list[str]:
        """Return what is doubtful in the data, of which `timedrun preflight` has a part read: not `whole`."""

    def unavailable(self, config: ConfigT) -> list[str]:
        """Return those messages of `preflight` that are about this machine only, of a benchmark with requirements on
        the device; without the config's device here, they are notes and not errors."""

    def synthetic(self, config: ConfigT, folder: Path) -> RunConfig:
        """Return `config` on random data of the shapes and declared sizes of its own, for `profile --synthetic`; write
        what runs read to `folder`, unless another config has."""

    def tokens_per_sample(self, config: ConfigT, folder: Path | None) -> float:
        """Return the mean number of tokens of a training sample of text without padding, for
        `profile --interleaved`."""


class PrepareModule(Protocol):
    """`prepare.py`, needed by `timedrun prepare`."""

    @property
    def prepare(self) -> Callable[..., dict[str, Any]]:
        """Take (config, folder, *, decode, workers) and those of images, text, evaluation_text and vocabulary that the
        benchmark uses; make or check the data and return the facts."""


class ExportModule(Protocol[ConfigT]):
    """`export.py`, needed by `load_model` for kept models."""

    def model(self, config: ConfigT) -> nn.Module:
        """Return the network of a run with its methods, on the CPU."""

    def export(self, config: ConfigT, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Write the weights to `folder` in the format of another library. Optional."""
