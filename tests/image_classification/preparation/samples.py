"""Small images of many kinds, in a folder or in tars laid out like ImageNet's."""

import hashlib
import io
import tarfile
from pathlib import Path

from PIL import Image

from image_classification.stores.store_format import SourceItem
from tests.image_classification.stores.small_stores import encoded, smooth

CLASSES = ("n01440764", "n01443537", "n02099601")


def item_of(path: Path, name: str = "train/ant/1.jpg", label: int = 0) -> SourceItem:
    """A file by itself."""
    return SourceItem(name, label, str(path), 0, path.stat().st_size)


def image_folder(folder: Path, *, train: int = 10, evaluation: int = 4) -> Path:
    """So many images of each class; one in ten is grayscale, CMYK, rotated or PNG."""
    seed = 0
    for split, count in (("train", train), ("val", evaluation)):
        for name in CLASSES:
            within = folder / split / name
            within.mkdir(parents=True)
            for number in range(count):
                seed += 1
                image = smooth(20 + seed % 7, 40 - seed % 9, seed)
                data = encoded(image, quality=90)
                if seed % 10 == 1:
                    data = encoded(image, mode="L")
                elif seed % 10 == 2:
                    data = encoded(image, mode="CMYK")
                elif seed % 10 == 3:
                    exif = Image.Exif()
                    exif[0x0112] = 6
                    data = encoded(image, exif=exif)
                elif seed % 10 == 4:
                    data = encoded(image, "PNG")
                stem = f"{name}_{number}" if split == "train" else f"ILSVRC2012_val_{seed:08d}"
                (within / f"{stem}.JPEG").write_bytes(data)
    return folder


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """A file into a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def tars_of(folder: Path, out: Path, *, nested_validation: bool = False) -> tuple[Path, Path, Path]:
    """(train, validation, labels): the tars that ImageNet would have of the images in `folder`, and a list of names and
    classes."""
    out.mkdir(exist_ok=True)
    train, validation, labels = out / "ILSVRC2012_img_train.tar", out / "ILSVRC2012_img_val.tar", out / "labels.txt"
    with tarfile.open(train, "w") as outer:
        for name in reversed(CLASSES):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as inner:
                for path in sorted((folder / "train" / name).iterdir(), reverse=True):
                    add(inner, path.name, path.read_bytes())
            add(outer, f"{name}.tar", buffer.getvalue())
    lines = []
    with tarfile.open(validation, "w") as archive:
        for path in sorted((folder / "val").rglob("*.JPEG"), key=lambda path: path.name):
            add(archive, f"val/{path.parent.name}/{path.name}" if nested_validation else path.name, path.read_bytes())
            lines.append(f"{path.name} {path.parent.name}\n")
    labels.write_text("".join(lines))
    return train, validation, labels


def fingerprint(store: Path) -> dict[str, str]:
    """SHA-256 of every file."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    return {path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
