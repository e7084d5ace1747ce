"""Prepare image data before a run: make a store, index a folder, or verify CIFAR-10's files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from image_classification import cifar10
from image_classification.configs import ImageRunConfig
from image_classification.datasets import facts, require_folder
from image_classification.preparation.builder import build_store
from image_classification.preparation.formats import effective_settings, source_split
from image_classification.preparation.inspection import CORRUPT, first_lines, inspect_all
from image_classification.preparation.sources import Source, of_index, open_source, source_notes
from image_classification.stores import image_folder
from image_classification.stores import manifest as store_manifest
from image_classification.stores.beton import loading_ffcv
from image_classification.stores.manifest import MANIFEST, ImageManifest, read_manifest, store_problems, verify
from judging.ground.errors import DataError, UsageError
from timedrun.runner.storage.worker_pool import TaskProgress, results, to_standard_error

_IMAGES_PER_TASK = 64


def prepare(
    config: ImageRunConfig,
    folder: Path | None,
    *,
    decode: bool,
    workers: int,
    images: Path | None = None,
    skip_broken: bool = False,
) -> dict[str, Any]:
    """Make the store of `config` in `folder` from `images` (a folder of train/ and val/, or of ImageNet's archives,
    which are unpacked there), or without images check the data there, and return its facts as plain values. Raises
    DataError if data is missing or damaged, with the names of images that cannot be decoded; UsageError if options
    contradict each other.

    decode: hash every file of a store, or decode every image of a folder.
    """
    source = config.data.source
    # Options that would have no effect are refused before anything is read or written.
    if images is None and skip_broken:
        raise UsageError("--skip-broken requires --images; nothing was prepared.")
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
    # Images in folders or archives: a store is made of them, or what is there already is checked.
    if images is not None and config.data.store.format == "folder":
        if skip_broken or folder is None or images.resolve() != folder.resolve():
            raise UsageError(
                f"format folder is read in place and not made: use --data-folder {images} without --images, or "
                "make a store with --data.store.format jpeg, raw or beton; nothing was prepared."
            )
    elif images is not None:
        return _make_store(config, folder, images, skip_broken=skip_broken, workers=workers)
    root = require_folder(config.data, folder)
    if config.data.store.format != "folder":
        return _check_store(config, root, decode=decode)
    return _list_folder(config, root, decode=decode, workers=workers)


def _make_store(
    config: ImageRunConfig, folder: Path | None, images: Path, *, skip_broken: bool, workers: int
) -> dict[str, Any]:
    if folder is None:
        raise UsageError("--images needs --data-folder, the folder of the new store; nothing was prepared.")
    if config.data.store.format == "beton":
        with loading_ffcv():
            import ffcv.writer  # noqa: F401  # it writes the file, after all images have been read
    built = build_store(
        partial(open_source, images, to_standard_error),
        folder,
        effective_settings(config.data.store, config.data.eval_resize),
        workers=workers,
        skip_broken=skip_broken,
        report=to_standard_error,
    )
    rate = {"images_per_second": round(built.images_made / built.seconds)} if built.images_made else {}
    return _store_facts(config, folder, built.manifest, built.notes) | {"seconds": round(built.seconds, 1), **rate}


def _check_store(config: ImageRunConfig, folder: Path, *, decode: bool) -> dict[str, Any]:
    if not (folder / MANIFEST).exists() and all((folder / sub).is_dir() for sub in image_folder.SPLITS.values()):
        raise DataError(
            f"{folder}: images in train/ and val/, and no store of format {config.data.store.format}; nothing was "
            f"prepared. Make a store of them (--images {folder} --data-folder STORE), or read the folder as it is "
            "(--data.store.format folder, with --data.loader turbojpeg or pillow)."
        )
    manifest = verify(folder) if decode else read_manifest(folder)
    if problems := store_problems(folder, config.data.store, config.data.eval_resize):
        raise DataError("\n".join(problems))
    return _store_facts(config, folder, manifest) | ({"verified_files": len(manifest.files)} if decode else {})


def _store_facts(
    config: ImageRunConfig, folder: Path, manifest: ImageManifest, notes: Sequence[str] = ()
) -> dict[str, Any]:
    kinds = {kind: len(names) for kind, names in manifest.findings.items()}
    image_facts = _image_facts(config, folder, manifest.classes, manifest.splits, kinds, notes)
    return {"store": str(folder), "format": manifest.settings.format, **image_facts, "sha256": manifest.digest}


def _image_facts(
    config: ImageRunConfig,
    folder: Path,
    classes: Sequence[str],
    splits: Mapping[str, store_manifest.SplitCounts],
    kinds: Mapping[str, int],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return counts of classes, splits and kinds, and the notes on them after `notes`, which are reported too."""
    values: dict[str, Any] = {"classes": len(classes)}
    for split, known in splits.items():
        values |= {split: known.images, f"{split}_bytes": known.bytes}
    values |= {"smallest_class": min(splits["train"].per_class)}
    values |= {f"found {kind}": count for kind, count in kinds.items()}
    notes = [*notes]
    if len(classes) != config.model.classes:
        notes.append(
            f"the data has {len(classes)} classes, but config {config.name} has {config.model.classes}: "
            f"a run needs --model.classes {len(classes)}"
        )
    for split in dict.fromkeys(source_split(split) for split in splits):
        known = next(splits[name] for name in splits if source_split(name) == split)
        if empty := [name for name, count in zip(classes, known.per_class, strict=True) if not count]:
            notes += image_folder.counted(empty, f"classes have no image in {split}")
    if left_out := kinds.get(CORRUPT):
        notes.append(f"{left_out:,} images were left out as corrupt; listed under findings in {folder / MANIFEST}")
    for note in notes:
        to_standard_error(note)
    return values | ({"notes": notes} if notes else {})


def _list_folder(config: ImageRunConfig, folder: Path, *, decode: bool, workers: int) -> dict[str, Any]:
    unreadable: list[str] = []
    index = image_folder.make_index(folder, unreadable)
    if unreadable:
        raise DataError(_about(unreadable, f"{len(unreadable):,} images cannot be read"))
    source = of_index(index, folder)
    kinds = _decode_all(source, workers) if decode else {}
    image_folder.write_index(index, folder)
    known = (index.classes, index.facts, dict(sorted(kinds.items())))
    image_facts = _image_facts(config, folder, *known, source_notes(source))
    return {"source": "image_folder", **image_facts, "sha256": index.digest}


def _decode_all(source: Source, workers: int) -> Mapping[str, int]:
    items = [item for split in source.splits.values() for item in split]
    tasks = [items[begin : begin + _IMAGES_PER_TASK] for begin in range(0, len(items), _IMAGES_PER_TASK)]
    kinds: Counter[str] = Counter()
    broken: list[str] = []
    progress = TaskProgress(to_standard_error, unit="images", tasks="groups")
    for task, (counted, unusable) in results(
        tasks,
        partial,
        (inspect_all,),
        workers=workers,
        name=lambda task: f"{len(task)} images ({task[0].name} to {task[-1].name})",
        remedy="no index was written; run the same command again, with fewer workers",
    ):
        kinds.update(counted)
        broken += unusable
        progress.add(len(task), True, (progress.amount + len(task)) / len(items))
    progress.line()
    if broken:
        raise DataError(_about(broken, f"{len(broken):,} of {len(items):,} images cannot be decoded or read"))
    return kinds


def _about(broken: Sequence[str], what: str) -> str:
    again = "no index was written. Replace or remove them and run the same command again"
    return f"{what}; {again}:\n{first_lines(sorted(broken))}"
