"""Axial slices of the ICBM 152 brain, which nilearn's wheel holds at 1 mm, with its tissues as classes."""

import functools
import hashlib
import importlib.util
from pathlib import Path

import numpy as np

from image_segmentation.batches import Case, Facts
from image_segmentation.brats import read_volume
from judging.ground.errors import DataError

BLOCKS, PERIOD, TRAIN, GAP, EVALUATION = 5, 31, 16, 5, 5
"""The 155 slices of the head are 5 blocks of 16 slices to train on, 5 left out, 5 to evaluate on and 5 left out.
Neighbours are nearly equal: the labels of the next slice have a mean Dice of 0.84 to a slice's own, those of the
nearest training slice, 6 to 8 mm away, 0.40. Sagittal slices would not do: the brain is symmetric to the voxel."""
BOX = (slice(0, BLOCKS * PERIOD), slice(27, 208, 2), slice(26, 171, 2))
"""Axial, coronal and sagittal range of the head; within a slice every second voxel is used."""
PADDING, SIZE = ((0, 0), (0, 1), (1, 2)), (92, 76)
"""To pixels that can be halved twice."""
MEAN, SCALE = 165, 45
"""Of the brain's intensities (0 to 255), rounded."""


class Brain:
    """The installed brain; its slices are read once in a process."""

    declared = facts = Facts(BLOCKS * TRAIN, BLOCKS * EVALUATION, BLOCKS, 1, SIZE)

    def __init__(self, folder: Path | None = None) -> None:
        """Find the files. nilearn is not imported, which would take seconds. Raises DataError if nilearn or nibabel is
        not installed, or a file is missing."""
        spec = importlib.util.find_spec("nilearn")
        folder = Path(spec.origin or "").parent / "datasets" / "data" if spec else Path()
        names = (f"mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz" for kind in ("t1", "gm", "wm"))
        self.files = [folder / name for name in names]
        if importlib.util.find_spec("nibabel") is None or not all(file.is_file() for file in self.files):
            raise DataError(
                "the ICBM 152 brain is part of nilearn and read by nibabel, and one of them is not installed:"
                " pip install 'timedrun[segmentation]'."
            )

    def read(self) -> dict[str, list[Case]]:
        return read(*self.files)

    @property
    def digest(self) -> dict[str, str]:
        content = b"".join(case.slices.tobytes() for cases in self.read().values() for case in cases)
        return {"sha256": hashlib.sha256(content).hexdigest(), "of": "slices and masks"}


@functools.cache
def read(intensities: Path, *tissues: Path) -> dict[str, list[Case]]:
    """Return each training slice as a case, and the evaluation slices of each block as one. Classes are 0 outside of
    the brain, else the likeliest of 1 neither (mostly fluid), 2 grey matter, 3 white matter. Raises DataError."""
    head = read_volume(intensities)[BOX]
    grey, white = (read_volume(file)[BOX].astype(np.int16) for file in tissues)
    likeliest = np.stack([255 - grey - white, grey, white]).argmax(0) + 1
    masks = np.where(head > 0, likeliest, 0)
    images = np.where(head > 0, (head.astype(np.float32) - MEAN) / SCALE, 0)  # 0 outside, as BraTS
    slices = np.stack([np.pad(volume, PADDING) for volume in (images, masks)], axis=1).astype(np.float32)
    blocks = range(0, BLOCKS * PERIOD, PERIOD)
    train = [slices[row : row + 1] for block in blocks for row in range(block, block + TRAIN)]
    evaluation = [slices[block + TRAIN + GAP :][:EVALUATION] for block in blocks]
    return {"train": [*map(Case, train)], "evaluation": [*map(Case, evaluation)]}
