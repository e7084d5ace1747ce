"""Builds a store of images in a folder of its own: resumable, the same bytes every time, the manifest last."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from image_classification.preparation.formats import source_split, splits_of, store_format
from image_classification.preparation.shard import MadeShard, SourceItem, StoreFormat
from image_classification.preparation.shard_maker import (
    NOTES,
    RULES,
    WORK,
    Note,
    ShardTask,
    load_note,
    shard_file,
    start_making,
)
from image_classification.preparation.sources import Source
from image_classification.stores.manifest import MANIFEST, Manifest, SplitFacts, StoreConfig, read_manifest, split_facts
from timedrun.errors import DataError, TimedrunError
from timedrun.storage.atomic_file import StoredFile, write_file
from timedrun.storage.folder_lock import locked
from timedrun.storage.worker_pool import TaskProgress, results

SHARD_IMAGES = 1024
SHARD_BYTES = 128 << 20
"""A shard ends at so many images, or bytes of their files."""
PLAN = f"{WORK}/plan.json"
_LISTED = 20  # broken images in a message
_SPARE = 1.02  # of the room on the disk, for indices and notes


@dataclass(frozen=True)
class Built:
    """A whole store, and what it took."""

    manifest: Manifest
    images_made: int
    images_found: int
    seconds: float


def build_store(
    open_source: Callable[[Path], Source],
    out: Path,
    settings: StoreConfig,
    *,
    workers: int,
    skip_broken: bool,
    report: Callable[[str], None],
    shard_images: int = SHARD_IMAGES,
) -> Built:
    """The store of a source in `out`, with effective `settings`. Its bytes do not depend on `workers`, nor on how often
    the work was interrupted. A store that lacks only evaluation splits gets them.

    Args:
        open_source: lists the images; gets a folder for what a rerun may use.

    Raises:
        DataError: the source cannot be used, images are corrupt, the disk is full, or `out` holds something else.
        TimedrunError: a worker process died.
    """
    began = time.monotonic()
    with _work_folder(out):
        present = read_manifest(out) if (out / MANIFEST).exists() else None
        source = open_source(out / WORK)
        if present is not None:
            _require_same(out, present, settings, source)
            resizes = sorted({*present.settings.evaluation_resizes, *settings.evaluation_resizes})
            settings = replace(settings, evaluation_resizes=tuple(resizes))
        build = _Build(out, settings, source, present, skip_broken, report, shard_images)
        build.begin()
        build.make_shards(workers)
        manifest = build.finish()
        shutil.rmtree(out / WORK)
    return Built(manifest, build.made, build.found, time.monotonic() - began)


class _Build:
    def __init__(
        self,
        out: Path,
        settings: StoreConfig,
        source: Source,
        present: Manifest | None,
        skip_broken: bool,
        report: Callable[[str], None],
        shard_images: int,
    ) -> None:
        self.out, self.settings, self.source, self.present = out, settings, source, present
        self.skip_broken, self.report = skip_broken, report
        self.format: StoreFormat = store_format(settings.format)
        self.kept = {split for split in splits_of(settings) if present is not None and _fits(out, present, split)}
        self.missing = [split for split in splits_of(settings) if split not in self.kept]
        self.tasks = {
            split: list(shard_tasks(split, source.splits[source_split(split)], shard_images)) for split in self.missing
        }
        self.keys: dict[tuple[str, int], str] = {}
        self.made = self.found = 0

    def begin(self) -> None:
        """Notes what is being made; removes what is left of an unfinished store of another plan.

        Raises:
            DataError: the disk has too little room.
        """
        same = {
            "rules": RULES,
            "settings": asdict(replace(self.settings, evaluation_resizes=())),
            "source": self.source.sha256,
        }
        plan = self.out / PLAN
        try:
            before = json.loads(plan.read_text(encoding="utf-8"))
            going_on = before["same"] == json.loads(json.dumps(same))
            splits = set(before["splits"])
        except (OSError, ValueError, KeyError, TypeError):
            going_on, splits = False, set()
        if splits and not going_on:
            self.report("unfinished parts of another source or other settings are removed")
            self._remove_splits(splits)
            for path in (self.out / WORK).iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            splits = set()
        self._require_room()
        _write(plan, json.dumps({"same": same, "splits": sorted(splits | set(self.missing))}).encode())

    def _remove_splits(self, splits: set[str]) -> None:
        """Removes the files of unfinished splits: what the manifest does not name under their names."""
        whole = set(self.present.splits) if self.present else set()
        for path in self.out.iterdir():
            if path.name.partition(".")[0] in splits - whole:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _require_room(self) -> None:
        needed = 0.0
        for split in self.missing:
            items = self.source.splits[source_split(split)]
            mean = sum(item.size for item in items) / max(1, len(items))
            each = self.format.bytes_per_image(self.settings, split, mean)
            needed += each * len(items) * _SPARE * (1 if self.format.keeps_shards else 2)
            shards = (self.out / shard_file(self.format, split, 0)).parent
            if shards.is_dir():
                needed -= sum(path.stat().st_size for path in shards.iterdir())
        free = shutil.disk_usage(self.out).free
        if needed > free:
            raise DataError(
                f"{self.out}: about {needed / 1e9:,.1f} GB are needed and {free / 1e9:,.1f} GB are free; nothing was "
                "written. Make room or name a folder on another disk."
            )

    def make_shards(self, workers: int) -> None:
        """Every shard is there.

        Raises:
            DataError: images are corrupt, all are named; or shards cannot be written.
        """
        tasks = [task for split in self.missing for task in self.tasks[split]]
        if not tasks:
            self.report("already prepared from the same images and settings")
            return
        progress = TaskProgress(self.report, unit="images", tasks="shards")
        total, done = sum(map(_size, tasks)), 0
        broken: dict[str, None] = {}  # an image is looked at once for each split that it is in
        for task, outcome in results(
            tasks,
            start_making,
            (self.out, self.settings, self.skip_broken),
            workers=workers,
            name=lambda task: task.name,
            remedy=f"no store was finished, finished shards are kept in {self.out}; run the same command again, with "
            "fewer workers",
        ):
            done += _size(task)
            self.keys[task.split, task.number] = outcome.key
            if outcome.made:
                self.made += len(task.items)
            else:
                self.found += len(task.items)
            broken.update(dict.fromkeys(outcome.broken))
            progress.add(len(task.items), outcome.made, done / max(1, total))
        progress.line()
        if broken and not self.skip_broken:
            raise DataError(_about_broken(sorted(broken), self.out))

    def finish(self) -> Manifest:
        """Index files, then the manifest."""
        facts: dict[str, SplitFacts] = {}
        files: dict[str, StoredFile] = {}
        findings: dict[str, set[str]] = {}
        if self.present is not None:
            facts = {split: self.present.splits[split] for split in self.present.splits if split in self.kept}
            files = {name: stored for name, stored in self.present.files.items() if _split_of(name) in self.kept}
            findings = {kind: set(names) for kind, names in self.present.findings.items()}
        for split in self.missing:
            notes = self._notes(split)
            shards = [note.shard for note in notes]
            facts[split] = self._facts(split, shards)
            try:
                files |= self.format.finish(self.out, split, shards)
            except OSError as error:
                raise _unwritable(self.out, error) from None
            if self.format.keeps_shards:
                files |= {shard.file: shard.stored for shard in shards}
            for note in notes:
                for kind, names in note.findings.items():
                    findings.setdefault(kind, set()).update(names)
        order = splits_of(self.settings)
        manifest = Manifest(
            settings=self.settings,
            classes=self.source.classes,
            splits={split: facts[split] for split in order},
            source_sha256=self.source.sha256,
            findings={kind: tuple(sorted(findings[kind])) for kind in sorted(findings)},
            files=dict(sorted(files.items())),
        )
        if self.missing:
            _write(self.out / MANIFEST, manifest.to_json().encode())
        self.present = manifest
        self._remove_splits(set(json.loads((self.out / PLAN).read_text(encoding="utf-8"))["splits"]))
        return manifest

    def _notes(self, split: str) -> list[Note]:
        found = []
        for task in self.tasks[split]:
            note = load_note(self.out, split, task.number, self.keys[split, task.number])
            if note is None:
                raise DataError(f"{self.out / NOTES}: that of {task.name} was changed meanwhile; run prepare again.")
            found.append(note)
        return found

    def _facts(self, split: str, shards: Sequence[MadeShard]) -> SplitFacts:
        labels = np.concatenate([shard.labels for shard in shards])
        if not len(labels):
            raise DataError(f"{self.out}: not one image of {split} decodes; no store was finished.")
        return split_facts(labels, len(self.source.classes), sum(int(shard.offsets[-1]) for shard in shards))


def shard_tasks(split: str, items: Sequence[SourceItem], shard_images: int = SHARD_IMAGES) -> Iterator[ShardTask]:
    """The shards of a split, decided by its list alone."""
    begin, size = 0, 0
    number = 0
    for place, item in enumerate(items):
        if place > begin and (place - begin == shard_images or size + item.size > SHARD_BYTES):
            yield ShardTask(split, number, begin, tuple(items[begin:place]))
            begin, size, number = place, 0, number + 1
        size += item.size
    if items:
        yield ShardTask(split, number, begin, tuple(items[begin:]))


@contextmanager
def _work_folder(out: Path) -> Iterator[None]:
    """A place for unfinished work in `out`, which is this process's alone; removed where nothing is left to go on."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(out, [MANIFEST, WORK]))
            (out / WORK).mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{out}: cannot be made or written to ({error.strerror}); nothing was prepared. Give a --data-folder "
                "that can be made."
            ) from None
        try:
            yield
        except TimedrunError:
            if not (out / PLAN).exists():
                shutil.rmtree(out / WORK)  # no shard was begun
            raise
        finally:
            if (out / MANIFEST).exists() and not (out / PLAN).exists() and (out / WORK).exists():
                shutil.rmtree(out / WORK)  # nothing was begun beside the whole store
            if (out / WORK).is_dir() and not any((out / WORK).iterdir()):
                (out / WORK).rmdir()


def _require_same(out: Path, present: Manifest, settings: StoreConfig, source: Source) -> None:
    """A whole store is added to, never replaced."""
    before = asdict(replace(present.settings, evaluation_resizes=()))
    now = asdict(replace(settings, evaluation_resizes=()))
    different = [f"{name} is {before[name]} there, {now[name]} now" for name in now if before[name] != now[name]]
    if present.source_sha256 != source.sha256:
        different.append("the images are others")
    if different:
        raise DataError(
            f"{out} holds a store prepared otherwise: {'; '.join(different)}. It was not touched; name a new folder."
        )


def _fits(out: Path, manifest: Manifest, split: str) -> bool:
    """Whether all files of a split are there in their sizes."""
    if split not in manifest.splits:
        return False
    of_split = [(out / name, stored.bytes) for name, stored in manifest.files.items() if _split_of(name) == split]
    return all(path.is_file() and path.stat().st_size == size for path, size in of_split)


def _split_of(file: str) -> str:
    """The split that a file of a store belongs to: <split>/... or <split>.<anything>."""
    return file.partition("/")[0].partition(".")[0]


def _about_broken(broken: Sequence[str], out: Path) -> str:
    names = out / WORK / "corrupt.txt"
    _write(names, "".join(f"{line}\n" for line in broken).encode(errors="surrogateescape"))
    shown = "\n".join(f"  {line}" for line in broken[:_LISTED])
    more = f"\n  and {len(broken) - _LISTED:,} more, all in {names}" if len(broken) > _LISTED else ""
    return (
        f"{len(broken):,} images cannot be decoded or read; no store was finished, shards without such images are "
        f"kept. Replace or remove them, or leave them out with --skip-broken, and run the same command "
        f"again:\n{shown}{more}"
    )


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path, content)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be written ({error.strerror or error}); no store was finished, finished shards are kept. Make "
        "room and run the same command again."
    )


def _size(task: ShardTask) -> int:
    return sum(item.size for item in task.items)
