"""ImageNet's archives, unpacked by torchvision into folders of classes beside them."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from judging.ground.errors import DataError
from judging.ground.folder_lock import locked
from timedrun.methods.integrations import fitting_torchvision

DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
ARCHIVES = {"val": "ILSVRC2012_img_val.tar", "train": "ILSVRC2012_img_train.tar"}
WORK = ".timedrun_unpacking"
"""Folder of what is not complete; what a killed process left there is removed by the next one."""
_SPARE = 1.03  # factor of the disk space: the last part of each file's last block, and one class twice


def unpack_missing(folder: Path, report: Callable[[str], None]) -> None:
    """Unpack ImageNet's archives in `folder` into val/ and train/, as torchvision.datasets.ImageNet does, unless these
    are there. A split appears when it is complete; an interrupted one begins anew. Raises DataError if an archive is
    missing or is not ImageNet's, torchvision cannot be imported, or the disk has no room."""
    missing = [split for split in ARCHIVES if not (folder / split).exists()]
    if not any((folder / ARCHIVES[split]).exists() for split in missing):
        return
    names = [ARCHIVES[split] for split in missing] + [DEVKIT] * ("val" in missing)
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"{folder}: {', '.join(absent)} missing beside ImageNet's archives; nothing was unpacked.")
    try:
        with fitting_torchvision():
            import scipy.io  # noqa: F401  # reads the devkit's meta.mat for torchvision
            from torchvision.datasets import imagenet
    except ImportError as error:
        raise DataError(
            f"{folder}: torchvision, which unpacks ImageNet's archives, cannot be used ({error}); nothing was unpacked."
            " pip install 'timedrun[imagenet]', or unpack them elsewhere and name a folder of train/ and val/."
        ) from None
    try:
        with locked(folder, names):
            shutil.rmtree(folder / WORK, ignore_errors=True)
            needed = _SPARE * sum((folder / name).stat().st_size for name in names)
            free = shutil.disk_usage(folder).free
            room = f"about {needed / 1e9:,.1f} GB are needed, {free / 1e9:,.1f} GB are free"
            if needed > free:
                raise DataError(
                    f"{folder}: {room}; nothing was unpacked. Free disk space, or name a folder on another disk with"
                    " links to the archives."
                )
            report(f"unpacking {', '.join(names)} once in {folder}, after a check of their MD5: {room}")
            try:
                for split in missing:
                    if split == "val":
                        imagenet.parse_devkit_archive(folder)
                        imagenet.parse_val_archive(folder, folder=f"{WORK}/val")
                    else:
                        imagenet.parse_train_archive(folder, folder=f"{WORK}/train")
                    (folder / WORK / split).rename(folder / split)
                    report(f"unpacked {folder / split}")
            finally:
                shutil.rmtree(folder / WORK, ignore_errors=True)
    except (RuntimeError, OSError, tarfile.TarError) as error:
        raise DataError(
            f"{folder}: ImageNet's archives cannot be unpacked there ({error}); splits that are complete are kept. Run"
            " the same command again, or name a folder with links to the archives."
        ) from None
