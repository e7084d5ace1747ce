"""The sources of slices, and the faults and digests of their data."""

from pathlib import Path

from image_segmentation.brats import Store
from image_segmentation.configs import SegmentationConfig
from image_segmentation.icbm152 import Brain
from judging.ground.errors import DataError, UsageError

SOURCES: dict[str, type[Brain | Store]] = {"icbm152": Brain, "brats": Store}
"""By the dataset of a config. Each has `facts` of the data in a folder, or `declared` ones, reads and digests it."""


def source_of(config: SegmentationConfig) -> type[Brain | Store]:
    """Return the source of a config's data. Raises UsageError if there is none."""
    if config.dataset not in SOURCES:
        raise UsageError(f"there is no dataset {config.dataset}; nothing was run; known: {', '.join(SOURCES)}.")
    return SOURCES[config.dataset]


def preflight(config: SegmentationConfig, folder: Path | None, ranks: int) -> list[str]:
    """Return the faults of `config` and its data, without reading a slice."""
    try:
        samples = source_of(config)(folder).facts.train_samples
    except (DataError, UsageError) as error:
        return [str(error)]
    problems = []
    if config.global_batch > samples:
        problems = [f"global batch {config.global_batch} exceeds the {samples} training samples; set --global-batch."]
    if config.foreground and config.dataset == "icbm152":
        problems.append("foreground has no effect on icbm152, whose training samples are its slices; leave it at 0.")
    return problems


def data_digest(config: SegmentationConfig, folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the data of `config` and a description of what it covers."""
    return source_of(config)(folder).digest
