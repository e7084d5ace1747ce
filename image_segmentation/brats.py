"""BraTS as a store: from NIfTI folders of the 2021 layout to normalized slices, a file a scan."""

import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cattrs
import numpy as np
from numpy.typing import NDArray

from image_segmentation.batches import Case, Facts
from judging.ground.atomic_file import StoredFile, check_size, failures, write_file
from judging.ground.errors import DataError
from judging.ground.result_files import require_data_folder
from timedrun.methods.training import sampling

KINDS = ("flair", "t1", "t1ce", "t2", "seg")
"""Files of a scan: four modalities, and the labels 0 background, 1 necrotic core, 2 oedema, 4 enhancing tumour."""
SIZE = (192, 160)
"""Pixels of a slice: NVIDIA's patch for this task."""
MANIFEST, SCANS = "brats.json", "scans"
FACTS = Facts(1000, 251 * 155, 251, 4, SIZE)
"""Of BraTS 2021: 1,251 scans have labels. A scan has 155 slices, fewer if some are empty."""


@dataclass(frozen=True)
class Scan:
    """Hold the counts and the file of a scan, as the store's manifest has them."""

    slices: int
    with_class: list[list[int]]
    cut_off: int
    """Tumour voxels outside of the slices' pixels, which no run sees."""
    file: StoredFile


def convert(folder: Path, out: Path) -> Scan:
    """Write NAME.npy, the slices of a `Case` in float16, to `out`.

    The box of non-zero voxels is cut out, each modality gets mean 0 and deviation 1 over its non-zero voxels, and the
    centre is taken or padded with zeros, as NVIDIA's example prepares two-dimensional data. Label 4 becomes class 3.

    Raises DataError, which names the file, if one is missing or cannot be read, has another shape or other labels.
    """
    files = {kind: folder / f"{folder.name}_{kind}.nii.gz" for kind in KINDS}
    volumes = {kind: read_volume(file) for kind, file in files.items()}
    labels = volumes["seg"]
    for kind, volume in volumes.items():
        if volume.shape != labels.shape or not np.isfinite(volume).all() or (kind != "seg" and not volume.any()):
            shapes = f"{volume.shape} voxels where the labels have {labels.shape}"
            raise DataError(f"{files[kind]}: {shapes}, or voxels that are not finite, or all zero.")
    if unknown := {*np.unique(labels).tolist()} - {0, 1, 2, 4}:
        raise DataError(f"{files['seg']}: has labels {sorted(unknown)}; those of BraTS 2021 are 0, 1, 2 and 4.")
    channels = np.stack([volumes[kind] for kind in KINDS]).astype(np.float32)
    filled: NDArray[np.bool_] = np.abs(channels[:-1]).sum(axis=0) > 0
    places = [np.flatnonzero(filled.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    channels = channels[:, *(slice(place[0], place[-1] + 1) for place in places)]
    for image in channels[:-1]:
        head = image[image != 0]
        image[image != 0] = (head - head.mean()) / max(float(head.std()), 1e-8)
    channels[-1][channels[-1] == 4] = 3
    slices = _centred(channels).swapaxes(0, 1).astype(np.float16)
    stream = io.BytesIO()
    np.save(stream, slices, allow_pickle=False)
    return Scan(
        slices=len(slices),
        with_class=[np.flatnonzero((slices[:, -1] == number).any((1, 2))).tolist() for number in (1, 2, 3)],
        cut_off=int((labels > 0).sum() - (slices[:, -1] > 0).sum()),
        file=write_file(out / f"{folder.name}.npy", stream.getvalue()),
    )


def read_volume(file: Path) -> NDArray[Any]:
    """Return the voxels (z, y, x) of a NIfTI file. Raises DataError if it cannot be read."""
    import nibabel
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError

    try:
        image: Any = nibabel.load(file)
        return np.asarray(image.dataobj).T
    except (OSError, EOFError, ValueError, zlib.error, ImageFileError, HeaderDataError) as error:
        raise DataError(f"{file}: cannot be read ({error}).") from None


def _centred(volume: NDArray[Any]) -> NDArray[Any]:
    """Return the middle `SIZE` pixels of (C, D, h, w), with zeros around smaller ones."""
    (height, width), around = SIZE, [(0, 0), (0, 0), *((side, side) for side in SIZE)]
    top, left = ((side + size) // 2 for side, size in zip(volume.shape[2:], SIZE, strict=True))
    return np.pad(volume, around)[:, :, top : top + height, left : left + width]


@dataclass(frozen=True)
class Store:
    """A prepared data set: its scans by name, and the SHA-256 of its manifest, which has those of all files."""

    folder: Path
    scans: dict[str, Scan]
    digest: str

    @classmethod
    def open(cls, folder: Path | None) -> Self:
        """Read the manifest. Raises DataError if it is missing or not one, or a file has another size."""
        folder = require_data_folder(folder, "data source brats")
        try:
            content = (folder / MANIFEST).read_bytes()
            scans = cattrs.structure(json.loads(content), dict[str, Scan])
        except (OSError, ValueError, cattrs.BaseValidationError):
            raise DataError(
                f"{folder} has no readable {MANIFEST}: it is no store of BraTS; make one by timedrun prepare"
                " image_segmentation baseline --data brats --images BRATS --data-folder STORE."
            ) from None
        store = cls(folder, scans, hashlib.sha256(content).hexdigest())
        if faults := failures(check_size, folder / SCANS, store.files):  # reads through a memory map report none
            raise DataError("\n".join(faults))
        return store

    @property
    def files(self) -> dict[str, StoredFile]:
        return {f"{name}.npy": scan.file for name, scan in self.scans.items()}

    def split(self) -> dict[str, list[str]]:
        """Return the scans of "train" and "evaluation", a fifth of all, rounded up, whatever the seed."""
        order, names = sampling.epoch_order(len(self.scans), seed=0, epoch=0).tolist(), sorted(self.scans)
        held_out = -(-len(order) // 5)
        parts = {"train": order[held_out:], "evaluation": order[:held_out]}
        return {part: [names[at] for at in sorted(numbers)] for part, numbers in parts.items()}


def facts(folder: Path | None) -> Facts:
    """Return sizes from the manifest. Raises DataError as `Store.open` does."""
    store = Store.open(folder)
    train, evaluation = store.split().values()
    slices = sum(store.scans[name].slices for name in evaluation)
    return Facts(len(train), slices, len(evaluation), FACTS.channels, SIZE)


def read(folder: Path | None) -> dict[str, list[Case]]:
    """Return the cases of both splits, through memory maps. Raises DataError as `Store.open` does."""
    store = Store.open(folder)

    def case(name: str) -> Case:
        slices = np.load(store.folder / SCANS / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return Case(slices, store.scans[name].with_class)

    return {part: [case(name) for name in names] for part, names in store.split().items()}


def digest(folder: Path | None) -> dict[str, str]:
    """Return the SHA-256 of the manifest."""
    return {"sha256": Store.open(folder).digest, "of": "the manifest, with the SHA-256 of every file"}
