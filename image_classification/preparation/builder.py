"""Resumable build of an image store: shards in parallel, then the index of each split, the manifest last."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from image_classification.preparation import shard_writer
from image_classification.preparation.formats import FORMATS, source_split, splits_of
from image_classification.preparation.shard_writer import RULES, ShardTask, shard_file, unwritable
from image_classification.preparation.sources import Source, source_notes
from image_classification.stores import manifest as store_manifest
from image_classification.stores.manifest import MANIFEST, ImageManifest, StoreConfig, read_manifest
from image_classification.stores.store_format import FinishedShard, SourceItem
from judging.ground.atomic_file import StoredFile, check_size, failures, write_file
from judging.ground.errors import DataError
from judging.ground.folder_lock import locked
from timedrun.runner.storage.store_files import WORK
from timedrun.runner.storage.worker_pool import TaskProgress, results

SHARD_IMAGES = 1024
SHARD_BYTES = 128 << 20
"""Limits of a shard: images, and bytes of their source files."""
PLAN = f"{WORK}/plan.json"
_LISTED = 20
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
    open_source: Callable[[], Source], out: Path, settings: StoreConfig, *, workers: int, report: Callable[[str], None]
) -> Built:
    """Build the store of a source in `out`, with effective `settings`, or find that it is there.

    Its bytes depend neither on `workers` nor on interruptions. Raises DataError if the source cannot be used, images
    are corrupt, the disk is full, or `out` holds something else; TimedrunError if a worker process died.

    Args:
        open_source: list the images; called when `out` is locked.
    """
    began = time.monotonic()
    with _work_folder(out):
        source = open_source()
        if (out / MANIFEST).exists():
            made, manifest = 0, read_manifest(out)
            _require_same(out, manifest, settings, source)
            report("already prepared from the same images and settings")
        else:
            _begin(out, settings, source)
            shards, made = _write_shards(out, settings, source, workers, report)
            manifest = _assembled(out, settings, source, shards)
        shutil.rmtree(out / WORK)
    return Built(manifest, made, time.monotonic() - began, source_notes(source))


def _begin(out: Path, settings: StoreConfig, source: Source) -> None:
    """Begin a store, or go on with one. Raises DataError if `out` has one of other settings, or no room is left."""
    values = {"rules": RULES, "settings": asdict(settings)}
    plan, content = out / PLAN, json.dumps(values).encode()
    if plan.exists() and plan.read_bytes() != content:
        raise DataError(
            f"{out} holds an unfinished store of other settings; it was not modified. Remove it, or name a new folder."
        )
    made_of, needed = FORMATS[settings.format], 0.0
    for split in splits_of(settings):
        items = source.splits[source_split(split)]
        each = made_of.bytes_per_image(settings, split, sum(item.size for item in items) / len(items))
        needed += each * len(items) * _SPARE * (1 if made_of.keeps_shards else 2)
        shards = (out / shard_file(made_of, split, 0)).parent
        if shards.is_dir():
            needed -= sum(path.stat().st_size for path in shards.iterdir())
    free = shutil.disk_usage(out).free
    if needed > free:
        raise DataError(
            f"{out}: about {needed / 1e9:,.1f} GB are needed, but only {free / 1e9:,.1f} GB are free; nothing "
            "was written. Free disk space or name a folder on another disk."
        )
    _write(plan, content)


def _write_shards(
    out: Path, settings: StoreConfig, source: Source, workers: int, report: Callable[[str], None]
) -> tuple[dict[str, list[FinishedShard]], int]:
    """Write every missing shard; return all by split, and the number of images in those that were made now. Raises
    DataError if images are corrupt, all of them named, or if shards cannot be written."""
    tasks = [task for split in splits_of(settings) for task in shard_tasks(split, source.splits[source_split(split)])]
    progress = TaskProgress(report, unit="images", tasks="shards")
    total, done, made = sum(task.source_bytes for task in tasks), 0, 0
    finished: dict[str, list[FinishedShard]] = {split: [] for split in splits_of(settings)}
    broken: dict[str, None] = {}  # an image is inspected once for each split that it is in
    for task, (shard, new) in results(
        tasks,
        shard_writer.ShardWriter,
        (out, settings),
        workers=workers,
        name=lambda task: task.name,
        remedy=f"the store is incomplete, finished shards are kept in {out}; run the same command again, with "
        "fewer workers",
    ):
        done += task.source_bytes
        finished[task.split].append(shard)
        made += len(task.items) if new else 0
        broken.update(dict.fromkeys(shard.broken))
        progress.add(len(task.items), new, done / max(1, total))
    progress.line()
    if broken:
        raise DataError(_about_broken(sorted(broken), out))
    return {split: sorted(shards, key=lambda shard: shard.number) for split, shards in finished.items()}, made


def _assembled(
    out: Path, settings: StoreConfig, source: Source, finished: Mapping[str, Sequence[FinishedShard]]
) -> ImageManifest:
    """Write the index of each split, and the manifest last."""
    made_of = FORMATS[settings.format]
    counts: dict[str, store_manifest.SplitCounts] = {}
    files: dict[str, StoredFile] = {}
    for split, shards in finished.items():
        labels = np.concatenate([shard.labels for shard in shards])
        size = sum(int(shard.offsets[-1]) for shard in shards)
        per_class = tuple(np.bincount(labels, minlength=len(source.classes)).tolist())
        counts[split] = store_manifest.SplitCounts(images=len(labels), per_class=per_class, bytes=size)
        try:
            files |= made_of.finish(out, split, shards)
        except OSError as error:
            raise unwritable(out, error) from None
        if made_of.keeps_shards:
            files |= {shard.file: shard.stored for shard in shards}
        for path in out.glob(f"{split}/*"):  # of more images, before some were removed
            if path.relative_to(out).as_posix() not in files:
                path.unlink()
    manifest = ImageManifest(
        settings=settings,
        classes=source.classes,
        splits=counts,
        source_sha256=source.sha256,
        files=dict(sorted(files.items())),
    )
    _write(out / MANIFEST, manifest.to_json().encode())
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
    before, now = asdict(present.settings), asdict(settings)
    if set(settings.evaluation_resizes) <= set(present.settings.evaluation_resizes):
        now["evaluation_resizes"] = before["evaluation_resizes"]
    different = [f"{name} is {before[name]} there but {now[name]} now" for name in now if before[name] != now[name]]
    if present.source_sha256 != source.sha256:
        different.append("the images differ")
    different += failures(check_size, out, present.files)
    if different:
        raise DataError(
            f"{out} holds another store, or a damaged one: {'; '.join(different)}. It was not modified; name a new"
            " folder."
        )


def _about_broken(broken: Sequence[str], out: Path) -> str:
    names = out / WORK / "corrupt.txt"
    _write(names, "".join(f"{line}\n" for line in broken).encode(errors="surrogateescape"))
    more = [f"and {len(broken) - _LISTED:,} more, all in {names}"] * (len(broken) > _LISTED)
    lines = "\n".join(f"  {line}" for line in [*broken[:_LISTED], *more])
    return (
        f"{len(broken):,} images cannot be decoded or read; the store is incomplete, shards without such images are "
        f"kept. Replace or remove them, and run the same command again:\n{lines}"
    )


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path, content)
    except OSError as error:
        raise unwritable(path, error) from None
