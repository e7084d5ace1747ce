"""Registry of image loaders: the store formats that each reads, the packages that it needs, and how to open it."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from image_classification.loaders import crop_kernel, ffcv_loader, pillow, raw, turbojpeg
from image_classification.loaders.loader import Loader
from image_classification.settings import DataConfig, LoaderName
from image_classification.stores.beton import FFCV
from image_classification.stores.manifest import Format, store_problems
from judging.ground.errors import DataError, UsageError


@dataclass(frozen=True)
class ImageLoader:
    """Frozen description of a loader; the packages that it needs are imported when it is opened."""

    name: LoaderName
    formats: tuple[Format, ...]
    """Store formats that it reads."""
    opened: Callable[..., Loader]
    packages: tuple[str, ...] = ()
    """Importable names of required packages."""
    install: str = ""
    """What to install if one of `packages` is missing."""
    compiled: Callable[[], None] = lambda: None
    """Function that compiles the loader's native code."""

    def open(self, config: DataConfig, folder: Path, device: torch.device, *, train: bool, seed: int) -> Loader:
        """Open the train or evaluation split of the store in `folder`; no image is read yet. Raises UsageError if the
        loader does not read the format; DataError for any other of its `problems`."""
        if problem := self.mismatch(config.store.format):
            raise UsageError(problem)
        if problems := self.problems(config, folder):
            raise DataError(" ".join(problems))
        return self.opened(config, folder, device, train=train, seed=seed)

    def problems(self, config: DataConfig, folder: Path | None) -> list[str]:
        """Return the reasons why the loader cannot read the store; without an existing folder, only check the config.

        Manifests and file sizes are read, images are not.
        """
        problems = [self.unavailable(), self.mismatch(config.store.format)]
        if config.eval_resize < config.eval_size:
            problems.append(
                f"data.eval_resize {config.eval_resize} is less than data.eval_size {config.eval_size}: the central"
                " crop would not fit into the resized image."
            )
        if folder is not None and folder.is_dir():
            problems += store_problems(folder, config.store, config.eval_resize)
        return [problem for problem in problems if problem]

    def unavailable(self) -> str:
        """Return how to install the missing packages, or "" if none is missing; no package is imported."""
        return "" if all(map(importlib.util.find_spec, self.packages)) else f"loader {self.name} needs {self.install}"

    def mismatch(self, store_format: Format) -> str:
        """Return a message naming the loaders for `store_format`, or "" if this one reads it."""
        if store_format in self.formats:
            return ""
        if store_format == "folder":
            return (
                "no loader reads images from a folder: make a store by `timedrun prepare` (--data.store.format jpeg)."
            )
        others = " or ".join(name for name, loader in LOADERS.items() if store_format in loader.formats)
        return (
            f"loader {self.name} reads format {' or '.join(self.formats)}, not {store_format}; use --data.loader"
            f" {others}, or --data.store.format {self.formats[0]}."
        )

    def compile_ahead(self) -> None:
        """Compile the loader's native code, which takes up to seconds; no data file is opened. Raises DataError if a
        package is missing."""
        if problem := self.unavailable():
            raise DataError(problem)
        self.compiled()

    @property
    def description(self) -> str:
        """Name for the log, with a note if the loader is slower here than elsewhere."""
        slow = self.name == "raw" and not crop_kernel.SCRIPTED
        return f"{self.name}, not scripted" if slow else self.name


VISION: Final = "; pip install 'timedrun[vision]'."
LOADERS: Final[Mapping[LoaderName, ImageLoader]] = {
    loader.name: loader
    for loader in (
        ImageLoader("pillow", ("jpeg",), pillow.PillowLoader, ("PIL",), f"Pillow{VISION}"),
        ImageLoader(
            "turbojpeg",
            ("jpeg",),
            turbojpeg.TurboJpegLoader,
            ("simplejpeg", "PIL"),
            f"simplejpeg and Pillow{VISION}",
            lambda: crop_kernel.scripted(crop_kernel.resize_into),
        ),
        ImageLoader("raw", ("raw",), raw.RawLoader, compiled=raw.compile_ahead),
        ImageLoader("ffcv", ("beton",), ffcv_loader.FfcvLoader, ("ffcv",), FFCV, ffcv_loader.compile_ahead),
    )
}
"""By name, the reference loader first."""
