"""Prepare slices before a run: make a store of BraTS, or check one."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import cattrs

from image_segmentation import brats
from image_segmentation.configs import SegmentationConfig
from image_segmentation.datasets import source_of
from judging.ground.atomic_file import check_content, check_size, failures, write_file
from judging.ground.errors import DataError, UsageError
from judging.ground.folder_lock import locked
from timedrun.runner.storage.worker_pool import TaskProgress, results, to_standard_error


def prepare(
    config: SegmentationConfig,
    folder: Path | None,
    *,
    decode: bool,
    workers: int,
    images: Path | None = None,
) -> dict[str, Any]:
    """Make the store of BraTS in `folder` from `images`, a folder of the 2021 layout, or check the data there, with
    `decode` the content of every file, and return its facts. Scans that an earlier call finished are kept.

    Raises DataError, which names broken scans; UsageError for options that contradict each other.
    """
    source = source_of(config)
    if images is not None:
        if source is not brats or folder is None:
            needs = "--images makes a store of BraTS and needs --data brats and --data-folder STORE"
            raise UsageError(f"{needs}. Nothing was prepared.")
        _make_store(images, folder, workers)
    known = asdict(source.facts(folder))
    if source is brats:
        store = brats.Store.open(folder)
        if decode and (faults := failures(check_content, store.folder / brats.SCANS, store.files)):
            raise DataError("\n".join(faults))
        known["tumour voxels outside of the slices"] = sum(scan.cut_off for scan in store.scans.values())
    return {**known, **source.digest(folder)}


def _make_store(images: Path, out: Path, workers: int) -> None:
    """Convert every scan of `images` that `out` lacks. Raises DataError, which says what is wrong with each that cannot
    be converted."""
    folders = sorted(path for path in images.iterdir() if path.is_dir()) if images.is_dir() else []
    scans: dict[str, brats.Scan] = {}
    broken: list[str] = []
    progress = TaskProgress(to_standard_error, unit="scans", tasks="scans")
    with locked(out, [brats.MANIFEST, brats.SCANS]):
        (out / brats.SCANS).mkdir(exist_ok=True)
        for folder, (scan, made) in results(
            folders,
            partial,
            (_converted, out / brats.SCANS),
            workers=workers,
            name=lambda folder: folder.name,
            remedy=f"finished scans are kept in {out}; run the same command again, with fewer workers",
        ):
            if isinstance(scan, str):
                broken.append(scan)
            else:
                scans[folder.name] = scan
            progress.add(1, made, (len(scans) + len(broken)) / len(folders))
        progress.line()
        if len(scans) < 2 or broken:
            raise DataError(
                f"{images}: {len(scans):,} of {len(folders):,} scans could be converted, so {out} is no store yet; they"
                " are kept there. Name the folder that has BraTS2021_00000 and the others, and replace or remove broken"
                " scans; then run the same command again.\n" + "\n".join(sorted(broken))
            )
        manifest = {name: asdict(scans[name]) for name in sorted(scans)}
        write_file(out / brats.MANIFEST, json.dumps(manifest).encode())


def _converted(out: Path, folder: Path) -> tuple[brats.Scan | str, bool]:
    """Return what `out` knows of a scan, or what is wrong with it, and whether it was converted now."""
    record = out / f"{folder.name}.json"
    try:
        scan = cattrs.structure(json.loads(record.read_bytes()), brats.Scan)
        check_size(out, f"{folder.name}.npy", scan.file)
        return scan, False
    except (OSError, ValueError, cattrs.BaseValidationError, DataError):
        pass  # it is not converted yet
    try:
        scan = brats.convert(folder, out)
    except DataError as error:
        return str(error), True
    write_file(record, json.dumps(asdict(scan)).encode())
    return scan, True
