"""Prepare image data before a run: make a store or check it, or verify CIFAR-10's files."""

from functools import partial
from pathlib import Path
from typing import Any

from image_classification import cifar10
from image_classification.configs import ImageRunConfig
from image_classification.datasets import facts, require_folder
from image_classification.preparation.builder import build_store
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.sources import SPLITS, open_source
from image_classification.stores.beton import loading_ffcv
from image_classification.stores.manifest import MANIFEST, ImageManifest, read_manifest, store_problems, verify
from judging.ground.errors import DataError, UsageError
from timedrun.runner.storage.worker_pool import to_standard_error


def prepare(
    config: ImageRunConfig, folder: Path | None, *, decode: bool, workers: int, images: Path | None = None
) -> dict[str, Any]:
    """Make the store of `config` in `folder` from `images`, a folder of train/ and val/, or without images check the
    data there, and return its facts as plain values. Raises DataError if data is missing or damaged, with the names of
    images that cannot be decoded; UsageError if options contradict each other.

    decode: hash every file of a store.
    """
    source = config.data.source
    # Options that would have no effect are refused before anything is read or written.
    if images is not None and source != "image_folder":
        raise UsageError(
            f"{config.name} trains on {source} and does not use --images; nothing was prepared. Use a config with "
            "data source image_folder, such as imagenet_baseline."
        )
    # Data of other sources are checked where they are: there is no store to make.
    if source == "cifar10":
        return {"source": source, "sha1": cifar10.verify(require_folder(config.data, folder))}
    if source != "image_folder":
        known = facts(config.data, None)
        return {
            "source": source,
            "train": known.train_samples,
            "evaluation": known.eval_samples,
            "note": "nothing to prepare",
        }
    if images is not None:
        return _make_store(config, folder, images, workers=workers)
    return _check_store(config, require_folder(config.data, folder), decode=decode)


def _make_store(config: ImageRunConfig, folder: Path | None, images: Path, *, workers: int) -> dict[str, Any]:
    if folder is None:
        raise UsageError("--images needs --data-folder, the folder of the new store; nothing was prepared.")
    if config.data.store.format == "beton":
        with loading_ffcv():
            import ffcv.writer  # noqa: F401  # it writes the file, after all images have been read
    built = build_store(
        partial(open_source, images),
        folder,
        effective_settings(config.data.store, config.data.eval_resize),
        workers=workers,
        report=to_standard_error,
    )
    for note in built.notes:
        to_standard_error(note)
    known = {"seconds": round(built.seconds, 1)} | ({"notes": [*built.notes]} if built.notes else {})
    if built.images_made:
        known["images_per_second"] = round(built.images_made / built.seconds)
    return _store_facts(folder, built.manifest) | known


def _check_store(config: ImageRunConfig, folder: Path, *, decode: bool) -> dict[str, Any]:
    if not (folder / MANIFEST).exists() and all((folder / sub).is_dir() for sub in SPLITS.values()):
        raise DataError(
            f"{folder}: images in train/ and val/, and no store of format {config.data.store.format}; nothing was "
            f"prepared. Make a store of them: --images {folder} --data-folder STORE."
        )
    manifest = verify(folder) if decode else read_manifest(folder)
    if problems := store_problems(folder, config.data.store, config.data.eval_resize):
        raise DataError("\n".join(problems))
    return _store_facts(folder, manifest) | ({"verified_files": len(manifest.files)} if decode else {})


def _store_facts(folder: Path, manifest: ImageManifest) -> dict[str, Any]:
    values: dict[str, Any] = {"store": str(folder), "format": manifest.settings.format}
    values["classes"] = len(manifest.classes)
    for split, known in manifest.splits.items():
        values |= {split: known.images, f"{split}_bytes": known.bytes}
    return values | {"sha256": manifest.digest}
