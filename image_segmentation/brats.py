"""BraTS as a store: from NIfTI folders of the 2021 layout to normalized slices, a file a scan."""

import io
import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

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

    try:
        image: Any = nibabel.load(file)
        return np.asarray(image.dataobj).T
    except Exception as error:  # several of the library's own errors derive from Exception alone
        raise DataError(f"{file}: cannot be read ({error}).") from None


def _centred(volume: NDArray[Any]) -> NDArray[Any]:
    """Return the middle `SIZE` pixels of (C, D, h, w), with zeros around smaller ones."""
    (height, width), around = SIZE, [(0, 0), (0, 0), *((side, side) for side in SIZE)]
    top, left = ((side + size) // 2 for side, size in zip(volume.shape[2:], SIZE, strict=True))
    return np.pad(volume, around)[:, :, top : top + height, left : left + width]


class Store:
    """A prepared data set: its scans by name."""

    declared = Facts(1000, 251 * 155, 251, 4, SIZE)
    """Of BraTS 2021: 1,251 scans have labels. A scan has 155 slices, fewer if some are empty."""

    def __init__(self, folder: Path | None) -> None:
        """Read the manifest. Raises DataError if it is missing or not one, or a file has another size."""
        self.folder = require_data_folder(folder, "data source brats")
        try:
            self._manifest = (self.folder / MANIFEST).read_bytes()
            self.scans = cattrs.structure(json.loads(self._manifest), dict[str, Scan])
        except (OSError, ValueError, cattrs.BaseValidationError):
            raise DataError(
                f"{self.folder} has no readable {MANIFEST}: it is no store of BraTS; make one by timedrun prepare"
                " image_segmentation baseline --data brats --images BRATS --data-folder STORE."
            ) from None
        self.files = {f"{SCANS}/{name}.npy": scan.file for name, scan in self.scans.items()}
        if faults := failures(check_size, self.folder, self.files):  # reads through a memory map report none
            raise DataError("\n".join(faults))

    def split(self) -> dict[str, dict[str, Scan]]:
        """Return the scans of "train" and "evaluation", a fifth of all, rounded up, whatever the seed."""
        names = sorted(self.scans)
        order, held_out = sampling.epoch_order(len(names), seed=0, epoch=0), -(-len(names) // 5)
        parts = {"train": order[held_out:], "evaluation": order[:held_out]}
        return {part: {names[at]: self.scans[names[at]] for at in sorted(numbers)} for part, numbers in parts.items()}

    @property
    def facts(self) -> Facts:
        """Sizes, from the manifest."""
        train, evaluation = self.split().values()
        slices = sum(scan.slices for scan in evaluation.values())
        return Facts(len(train), slices, len(evaluation), self.declared.channels, SIZE)

    def read(self) -> dict[str, list[Case]]:
        """Return the cases of both splits, through memory maps."""

        def case(name: str, scan: Scan) -> Case:
            file = self.folder / SCANS / f"{name}.npy"
            return Case(np.load(file, mmap_mode="r", allow_pickle=False), scan.with_class)

        return {part: [case(*named) for named in scans.items()] for part, scans in self.split().items()}

    @property
    def digest(self) -> dict[str, str]:
        return {"sha256": sha256(self._manifest).hexdigest(), "of": "the manifest, with the SHA-256 of every file"}
