"""Prepare slices before a run: make a store of BraTS, or check one."""

import json
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import cattrs

from image_segmentation.brats import MANIFEST, SCANS, Scan, Store, convert
from image_segmentation.configs import SegmentationConfig
from image_segmentation.datasets import source_of
from judging.ground.atomic_file import check_size, write_file
from judging.ground.errors import DataError, UsageError
from judging.ground.folder_lock import locked
from timedrun.runner.storage.store_files import verify
from timedrun.runner.storage.worker_pool import TaskProgress, results, to_standard_error


def prepare(
    config: SegmentationConfig, folder: Path | None, *, decode: bool, workers: int, images: Path | None = None
) -> dict[str, Any]:
    """Make the store of BraTS in `folder` from `images`, a folder of the 2021 layout, or check the data there, with
    `decode` the content of every file, and return its facts. Scans that an earlier call finished are kept.

    Raises DataError, which names broken scans; UsageError for options that contradict each other.
    """
    source = source_of(config)
    if images is not None:
        if source is not Store or folder is None:
            needs = "--images makes a store of BraTS and needs --data brats and --data-folder STORE"
            raise UsageError(f"{needs}. Nothing was prepared.")
        _make_store(images, folder, workers)
    data = source(folder)
    known = asdict(data.facts)
    if isinstance(data, Store):
        if decode:
            verify(data.folder, data)
        known["tumour voxels outside of the slices"] = sum(scan.cut_off for scan in data.scans.values())
    return known | data.digest


def _make_store(images: Path, out: Path, workers: int) -> None:
    """Convert every scan of `images` that `out` lacks. Raises DataError, which says what is wrong with each that cannot
    be converted."""
    folders = sorted(path for path in images.iterdir() if path.is_dir()) if images.is_dir() else []
    remedy = f"finished scans are kept in {out}; run the same command again, with fewer workers"
    progress, faults = TaskProgress(to_standard_error, unit="scans", tasks="scans"), list[str]()
    with locked(out, [MANIFEST, SCANS]):
        (out / SCANS).mkdir(exist_ok=True)
        work = partial, (_converted, out / SCANS)
        for _, (fault, made) in results(folders, *work, workers=workers, name=attrgetter("name"), remedy=remedy):
            faults.append(fault)
            progress.add(1, made, len(faults) / len(folders))
        progress.line()
        broken = sorted(filter(None, faults))
        if broken or len(folders) < 2:
            raise DataError(
                f"{images}: {len(folders) - len(broken):,} of {len(folders):,} scans could be converted, so {out} is no"
                " store yet; they are kept there. Name the folder that has BraTS2021_00000 and the others, and replace"
                " or remove broken scans; then run the same command again.\n" + "\n".join(broken)
            )
        manifest = {folder.name: json.loads((out / SCANS / f"{folder.name}.json").read_bytes()) for folder in folders}
        write_file(out / MANIFEST, json.dumps(manifest).encode())


def _converted(out: Path, folder: Path) -> tuple[str, bool]:
    """Convert a scan and record it, unless `out` has it. Return what is wrong with it, and True if it was not there."""
    record = out / f"{folder.name}.json"
    try:
        check_size(out, f"{folder.name}.npy", cattrs.structure(json.loads(record.read_bytes()), Scan).file)
        return "", False
    except (OSError, ValueError, cattrs.BaseValidationError, DataError):
        pass  # it is not converted yet
    try:
        write_file(record, json.dumps(asdict(convert(folder, out))).encode())
    except DataError as error:
        return str(error), True
    return "", True
