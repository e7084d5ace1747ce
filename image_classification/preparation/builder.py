"""Resumable build of an image store: shards in parallel, then the index of each split, the manifest last."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from image_classification.preparation import shard_writer
from image_classification.preparation.formats import FORMATS, source_split, splits_of
from image_classification.preparation.inspection import first_lines
from image_classification.preparation.shard_writer import RULES, ShardTask, shard_file, unwritable
from image_classification.preparation.sources import Source, source_notes
from image_classification.stores import manifest as store_manifest
from image_classification.stores.manifest import MANIFEST, ImageManifest, StoreConfig, count_split, read_manifest
from image_classification.stores.store_format import FinishedShard, SourceItem
from judging.ground.atomic_file import StoredFile, write_file
from judging.ground.errors import DataError
from judging.ground.folder_lock import locked
from timedrun.runner.storage.store_files import WORK
from timedrun.runner.storage.worker_pool import TaskProgress, results

SHARD_IMAGES = 1024
SHARD_BYTES = 128 << 20
"""Limits of a shard: images, and bytes of their source files."""
PLAN = f"{WORK}/plan.json"
_SPARE = 1.02  # factor of the estimated disk space, for indices and records


@dataclass(frozen=True)
class Built:
    """Complete store, with the images made by this run; the others are from earlier ones."""

    manifest: ImageManifest
    images_made: int
    seconds: float
    notes: Sequence[str]
    """Of `source_notes`."""


def build_store(
    open_source: Callable[[], Source],
    out: Path,
    settings: StoreConfig,
    *,
    workers: int,
    skip_broken: bool,
    report: Callable[[str], None],
) -> Built:
    """Build the store of a source in `out`, with effective `settings`.

    Its bytes depend neither on `workers` nor on interruptions. Missing evaluation splits are added to a complete store.
    Raises DataError if the source cannot be used, images are corrupt, the disk is full, or `out` holds something else;
    TimedrunError if a worker process died.

    Args:
        open_source: list the images; called when `out` is locked.
    """
    began = time.monotonic()
    with _work_folder(out):
        present = read_manifest(out) if (out / MANIFEST).exists() else None
        source = open_source()
        if present is not None:
            _require_same(out, present, settings, source)
            resizes = sorted({*present.settings.evaluation_resizes, *settings.evaluation_resizes})
            settings = replace(settings, evaluation_resizes=tuple(resizes))
        build = _Build(out, settings, source, present, skip_broken, report)
        build.begin()
        build.write_shards(workers)
        manifest = build.finish()
        shutil.rmtree(out / WORK)
    return Built(manifest, build.made, time.monotonic() - began, source_notes(source))


@dataclass
class _Build:
    out: Path
    settings: StoreConfig
    source: Source
    present: ImageManifest | None
    skip_broken: bool
    report: Callable[[str], None]
    made: int = 0

    def __post_init__(self) -> None:
        self.format = FORMATS[self.settings.format]
        present, splits = self.present, splits_of(self.settings)
        self.kept = {split for split in splits if present is not None and _complete(self.out, present, split)}
        self.missing = [split for split in splits if split not in self.kept]
        self.tasks = {
            split: list(shard_tasks(split, self.source.splits[source_split(split)])) for split in self.missing
        }
        self.shards: dict[tuple[str, int], FinishedShard] = {}

    def begin(self) -> None:
        settings = asdict(replace(self.settings, evaluation_resizes=()))
        same = json.loads(json.dumps({"rules": RULES, "settings": settings, "source": self.source.sha256}))
        plan = self.out / PLAN
        before = {"same": same, "splits": []}
        with suppress(OSError, ValueError, TypeError):  # there is none, or it is damaged
            before |= json.loads(plan.read_text(encoding="utf-8"))
        self.begun = set(before["splits"])
        if before["same"] != same:
            self.report("removing unfinished shards of another source or other settings")
            self._remove_unlisted()
            for path in (self.out / WORK).iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            self.begun = set()
        self.begun |= set(self.missing)
        self._require_space()
        _write(plan, json.dumps({"same": same, "splits": sorted(self.begun)}).encode())

    def _remove_unlisted(self) -> None:
        """Remove the files of splits that were begun and are not in the manifest."""
        for path in self.out.iterdir():
            if path.name.partition(".")[0] in self.begun - set(self.present.splits if self.present else ()):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _require_space(self) -> None:
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
                f"{self.out}: about {needed / 1e9:,.1f} GB are needed, but only {free / 1e9:,.1f} GB are free; nothing "
                "was written. Free disk space or name a folder on another disk."
            )

    def write_shards(self, workers: int) -> None:
        """Write every missing shard. Raises DataError if images are corrupt, all of them named, or if shards cannot be
        written."""
        tasks = [task for split in self.missing for task in self.tasks[split]]
        if not tasks:
            self.report("already prepared from the same images and settings")
            return
        progress = TaskProgress(self.report, unit="images", tasks="shards")
        total, done = sum(task.source_bytes for task in tasks), 0
        broken: dict[str, None] = {}  # an image is inspected once for each split that it is in
        for task, (shard, made) in results(
            tasks,
            shard_writer.ShardWriter,
            (self.out, self.settings, self.skip_broken),
            workers=workers,
            name=lambda task: task.name,
            remedy=f"the store is incomplete, finished shards are kept in {self.out}; run the same command again, with "
            "fewer workers",
        ):
            done += task.source_bytes
            self.shards[task.split, task.number] = shard
            self.made += len(task.items) if made else 0
            broken.update(dict.fromkeys(shard.broken))
            progress.add(len(task.items), made, done / max(1, total))
        progress.line()
        if broken and not self.skip_broken:
            raise DataError(_about_broken(sorted(broken), self.out))

    def finish(self) -> ImageManifest:
        counts: dict[str, store_manifest.SplitCounts] = {}
        files: dict[str, StoredFile] = {}
        findings: dict[str, set[str]] = {}
        if self.present is not None:
            counts = {split: self.present.splits[split] for split in self.present.splits if split in self.kept}
            files = {name: stored for name, stored in self.present.files.items() if _split_of(name) in self.kept}
            findings = {kind: set(names) for kind, names in self.present.findings.items()}
        for split in self.missing:
            shards = [self.shards[split, task.number] for task in self.tasks[split]]
            labels = np.concatenate([shard.labels for shard in shards])
            if not len(labels):
                raise DataError(f"{self.out}: no image of {split} can be decoded; the store is incomplete.")
            size = sum(int(shard.offsets[-1]) for shard in shards)
            counts[split] = count_split(labels, len(self.source.classes), size)
            try:
                files |= self.format.finish(self.out, split, shards)
            except OSError as error:
                raise unwritable(self.out, error) from None
            if self.format.keeps_shards:
                files |= {shard.file: shard.stored for shard in shards}
            for shard in shards:
                for kind, names in shard.findings.items():
                    findings.setdefault(kind, set()).update(names)
        manifest = ImageManifest(
            settings=self.settings,
            classes=self.source.classes,
            splits={split: counts[split] for split in splits_of(self.settings)},
            source_sha256=self.source.sha256,
            findings={kind: tuple(sorted(findings[kind])) for kind in sorted(findings)},
            files=dict(sorted(files.items())),
        )
        if self.missing:
            _write(self.out / MANIFEST, manifest.to_json().encode())
        self.present = manifest
        self._remove_unlisted()
        return manifest


def shard_tasks(split: str, items: Sequence[SourceItem]) -> Iterator[ShardTask]:
    begin, size, number = 0, 0, 0
    for position, item in enumerate(items):
        if position > begin and (position - begin == SHARD_IMAGES or size + item.size > SHARD_BYTES):
            yield ShardTask(split, number, begin, tuple(items[begin:position]))
            begin, size, number = position, 0, number + 1
        size += item.size
    if items:
        yield ShardTask(split, number, begin, tuple(items[begin:]))


@contextmanager
def _work_folder(out: Path) -> Iterator[None]:
    """Lock `out` and make its work folder, which is removed if it holds nothing to resume."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(out, [MANIFEST, WORK]))
            (out / WORK).mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{out}: cannot be created or written to ({error.strerror}); nothing was prepared. Choose another "
                "--data-folder."
            ) from None
        try:
            yield
        finally:
            if not (out / PLAN).exists():  # no shard was begun, or the store was complete before
                shutil.rmtree(out / WORK, ignore_errors=True)


def _require_same(out: Path, present: ImageManifest, settings: StoreConfig, source: Source) -> None:
    before = asdict(replace(present.settings, evaluation_resizes=()))
    now = asdict(replace(settings, evaluation_resizes=()))
    different = [f"{name} is {before[name]} there but {now[name]} now" for name in now if before[name] != now[name]]
    if present.source_sha256 != source.sha256:
        different.append("the images differ")
    if different:
        raise DataError(
            f"{out} holds a store prepared differently: {'; '.join(different)}. It was not modified; name a new folder."
        )


def _complete(out: Path, manifest: ImageManifest, split: str) -> bool:
    if split not in manifest.splits:
        return False
    of_split = [(out / name, stored.bytes) for name, stored in manifest.files.items() if _split_of(name) == split]
    return all(path.is_file() and path.stat().st_size == size for path, size in of_split)


def _split_of(file: str) -> str:
    return file.partition("/")[0].partition(".")[0]


def _about_broken(broken: Sequence[str], out: Path) -> str:
    names = out / WORK / "corrupt.txt"
    _write(names, "".join(f"{line}\n" for line in broken).encode(errors="surrogateescape"))
    return (
        f"{len(broken):,} images cannot be decoded or read; the store is incomplete, shards without such images are "
        f"kept. Replace or remove them, or leave them out with --skip-broken, and run the same command "
        f"again:\n{first_lines(broken, f', all in {names}')}"
    )


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path, content)
    except OSError as error:
        raise unwritable(path, error) from None
