"""Kill builds with SIGKILL at random points and resume them; a program that imports once and forks for each build."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from image_classification.preparation import builder
from image_classification.preparation.formats import effective_settings
from image_classification.preparation.sources import open_source
from image_classification.stores.manifest import MANIFEST, StoreConfig
from judging.ground import atomic_file
from tests.image_classification.preparation.samples import fingerprint

SETTINGS = {
    "jpeg": StoreConfig(format="jpeg"),
    "raw": StoreConfig(format="raw", size=16, evaluation_resizes=(16, 20)),
    "beton": StoreConfig(format="beton", size=24),
}


def build(folder: Path, store: Path, settings: StoreConfig) -> None:
    """Build from the tars in `folder`, 4 images per shard."""
    builder.SHARD_IMAGES = 4
    builder.build_store(
        lambda cache: open_source([folder / "tars"], None, cache, lambda _: None),
        store,
        effective_settings(settings, 16),
        workers=1,
        skip_broken=False,
        report=lambda _: None,
    )


class Moments:
    """Count the file operations in a folder; kill this process group at number `last`."""

    def __init__(self, store: Path, last: int | None) -> None:
        self.count, self.last, self.store, self.half_manifest = 0, last, str(store), 0
        write, complete = atomic_file.FileWriter.write, atomic_file.FileWriter.complete

        def written(writer: atomic_file.FileWriter, data: bytes | memoryview) -> None:
            whole = memoryview(data).cast("B")
            for half in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
                write(writer, half)
                writer._stream.flush()  # or nothing of it were on the disk at this moment
                self.moment()
                if writer.path.name == MANIFEST:
                    self.half_manifest = self.half_manifest or self.count

        def completed(writer: atomic_file.FileWriter) -> atomic_file.StoredFile:
            found = complete(writer)
            self.moment()
            return found

        atomic_file.FileWriter.write = written  # type: ignore[method-assign]
        atomic_file.FileWriter.complete = completed  # type: ignore[method-assign]
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Audit hook, called by Python before every change of a file."""
        removed = event in ("os.remove", "os.rmdir")  # within rmtree they get a name without its folder
        changed = event in ("os.rename", "os.mkdir") or (event == "open" and set(str(arguments[1])) & set("wax+"))
        if removed or (changed and str(arguments[0]).startswith(self.store)):
            self.moment()

    def moment(self) -> None:
        """Count, and kill at the last."""
        self.count += 1
        if self.count == self.last:
            os.killpg(0, signal.SIGKILL)


def in_child(work: Callable[[], int]) -> int | None:
    """Run `work` in a forked process group; return its exit code, or None if it killed itself."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 255
        try:
            code = work()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def killed_by_moments(folder: Path, name: str, points: int, random: Random) -> list[dict[str, Any]]:
    """Kill a build by one process at random operations; kill some of the reruns too."""

    def counted() -> int:
        moments = Moments(folder / f"{name}_whole", None)
        build(folder, folder / f"{name}_whole", SETTINGS[name])
        (folder / "moments").write_text(f"{moments.count} {moments.half_manifest}")
        return 0

    assert in_child(counted) == 0
    count, half_manifest = map(int, (folder / "moments").read_text().split())
    whole = fingerprint(folder / f"{name}_whole")
    items = []
    for point in range(points):
        store = folder / f"{name}_{point}"
        # every second time at the end too, where indices and the manifest are written and the work folder goes
        kills = [random.randint(1, count), random.randint(count * 3 // 4, count)][: 1 + point % 2]
        if point == 0:
            kills = [half_manifest]
        ends, manifests = [], []
        for last in kills:
            ends.append(in_child(lambda last=last, store=store: _killed(folder, store, name, last)))  # type: ignore[misc]
            manifests.append((store / MANIFEST).exists())
        done = in_child(lambda store=store: build(folder, store, SETTINGS[name]) or 0)  # type: ignore[misc]
        same = fingerprint(store) == whole
        items.append({"kills": kills, "of": count, "ends": ends, "manifests": manifests, "done": done, "same": same})
    return items


def _killed(folder: Path, store: Path, name: str, last: int) -> int:
    Moments(store, last)
    build(folder, store, SETTINGS[name])
    return 0


def main() -> None:
    """Arguments: folder with tars, seed, points of each format. Prints JSON."""
    folder, seed, points = Path(sys.argv[1]), *map(int, sys.argv[2:])
    os.fsync = lambda _: None  # type: ignore[assignment]  # a killed process loses nothing that it gave to the system
    import PIL.JpegImagePlugin
    import PIL.PngImagePlugin  # noqa: F401

    print(json.dumps({name: killed_by_moments(folder, name, points, Random(f"{seed} {name}")) for name in SETTINGS}))
