"""The sources of slices, and the faults and digests of their data."""

from pathlib import Path
from types import ModuleType

from image_segmentation import brats, icbm152
from image_segmentation.configs import SegmentationConfig
from judging.ground.errors import DataError, UsageError

SOURCES = {"icbm152": icbm152, "brats": brats}
"""By the dataset of a config: modules with the declared sizes `FACTS`, and `facts`, `read`, `digest` of a folder."""


def source_of(config: SegmentationConfig) -> ModuleType:
    """Return the source of a config's data. Raises UsageError if there is none."""
    if config.dataset not in SOURCES:
        raise UsageError(f"there is no dataset {config.dataset}; nothing was run; known: {', '.join(SOURCES)}.")
    return SOURCES[config.dataset]


def preflight(config: SegmentationConfig, folder: Path | None, ranks: int) -> list[str]:
    """Return the faults of `config` and its data, without reading a slice."""
    try:
        samples = source_of(config).facts(folder).train_samples
    except (DataError, UsageError) as error:
        return [str(error)]
    problems = []
    if config.global_batch > samples:
        problems.append(
            f"global batch {config.global_batch} exceeds the {samples} training samples; set --global-batch."
        )
    if config.foreground and config.dataset == "icbm152":
        problems.append("foreground has no effect on icbm152, whose training samples are its slices; leave it at 0.")
    return problems


def data_digest(config: SegmentationConfig, folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the data of `config` and a description of what it covers."""
    digest: dict[str, str] = source_of(config).digest(folder)
    return digest
