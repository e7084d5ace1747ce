"""Runs on the ICBM 152 brain: its split, its thresholds, short runs and their logs; a store of BraTS: which scans are
named as broken, what is kept, and a run on it."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from image_segmentation import brats, configs, icbm152, train
from image_segmentation.batches import SliceBatches
from image_segmentation.datasets import data_digest, preflight
from image_segmentation.model import mean_dice, overlaps
from image_segmentation.prepare import prepare
from judging.ground.errors import DataError, UsageError
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.one_rank import ALONE, CPU, recorded_losses, trained
from timedrun import methods
from timedrun.runner.distributed.process_group import ProcessGroup

nibabel = pytest.importorskip("nibabel")
pytest.importorskip("nilearn")

FACTS = icbm152.Brain.facts
RESIZING = methods.ProgressiveResizing(start=0.5, delay=0.2, finetune=0.2, increment=4, interpolation="bilinear")


def short(**changes):
    """An epoch of five steps on the tissues, with a small network, which its first evaluation does not end."""
    base = configs.icbm152_methods()
    schedule, evaluation = replace(base.schedule, epochs=1), replace(base.evaluation, target=0.99, first=1)
    few = {"global_batch": 16, "widths": (2, 4), "max_epochs": 0, "schedule": schedule, "evaluation": evaluation}
    return replace(base, **(few | changes))


def test_blocks_of_slices_are_apart_and_copied_labels_and_the_best_thresholds_stay_below_the_target():
    cases = icbm152.Brain().read()
    slices, train_slices = (
        torch.from_numpy(np.concatenate([case.slices for case in cases[part]])) for part in ("evaluation", "train")
    )
    assert (len(cases["train"]), len(slices)) == (FACTS.train_samples, FACTS.eval_samples)
    assert slices.shape[1:] == (2, *icbm152.SIZE) and set(slices[:, 1].unique().tolist()) == {0, 1, 2, 3}

    def quality(predicted):
        counts = overlaps(predicted, slices[:, 1].long(), 4)
        return mean_dice(counts.view(icbm152.BLOCKS, icbm152.EVALUATION, 3, 2).sum(1))

    rows = icbm152.PERIOD * np.arange(icbm152.BLOCKS)[:, None] + np.arange(icbm152.PERIOD)
    used, held_out = rows[:, : icbm152.TRAIN].ravel(), rows[:, icbm152.TRAIN + icbm152.GAP :][:, : icbm152.EVALUATION]
    away = np.abs(used[:, None] - held_out.ravel())
    assert away.min() == icbm152.GAP + 1
    assert quality(train_slices[away.argmin(0), 1].long()) < 0.45
    intensities, brain = slices[:, 0], slices[:, 1] > 0
    best = max(
        quality(brain.long() + (intensities >= low) * brain + (intensities >= high) * brain)
        for low in np.arange(-1.6, -0.5, 0.05)
        for high in np.arange(0.4, 1.0, 0.05)
    )
    assert 0.925 < best < 0.926 < configs.icbm152_baseline().evaluation.target - 0.005


def test_warm_up_leaves_the_losses_and_a_micro_batch_has_its_part_by_its_slices(monkeypatch):
    losses = recorded_losses(monkeypatch)
    monkeypatch.setattr(torch.nn, "BatchNorm2d", torch.nn.InstanceNorm2d)  # which sees one slice
    monkeypatch.setattr(train, "dice_cross_entropy", torch.nn.functional.cross_entropy)
    for changes in ({"warm_up_steps": 0}, {"warm_up_steps": 3}, {"micro_batch": 6}):
        trained(short(**changes))
    assert len(losses) == 15 and losses[:5] == losses[5:10]
    assert losses[:5] == pytest.approx(losses[10:], rel=1e-4)


def test_a_log_passes_the_strict_checks_and_states_its_rules_and_its_methods(tmp_path):
    chosen = (methods.BlurPool(min_channels=2), RESIZING, methods.SWA(start=0.2, end=0.7, interval=0.1))
    config = short(methods=chosen, schedule=configs.Schedule(kind="cosine", epochs=2))
    trained(replace(config, evaluation=replace(config.evaluation, target=0.01, first=2)), RunLog(tmp_path / "log.txt"))
    log = record.read(tmp_path / "log.txt")
    assert log.status == keys.SUCCESS and log.value(keys.SUBMISSION_BENCHMARK) == "unet_brats"
    assert log.value(keys.EVAL_SAMPLES) == 25 and log.value(keys.DATASET) == "icbm152"
    assert check(tmp_path / "log.txt").passed


def test_run_start_is_on_disk_before_the_data_are_opened(tmp_path, monkeypatch):
    path = tmp_path / "result_0.txt"

    def refuse(*files):
        assert record.read(path).started is not None
        raise OSError("no data today")

    monkeypatch.setattr(icbm152, "read", refuse)
    with pytest.raises(OSError, match="no data today"):
        trained(short(), RunLog(path))


def test_warm_up_sees_every_size_of_progressive_resizing_once():
    config = short(methods=(RESIZING,), warm_up_steps=1, schedule=configs.Schedule(kind="cosine", epochs=9))
    steps = [step for step, _ in train.warm_up_batches(config, FACTS, config.global_batch, CPU)]
    widths = [RESIZING.width(76, config.progress(step, 5)) for step in steps]
    assert widths == sorted({RESIZING.width(76, config.progress(step, 5)) for step in range(45)}) and len(widths) > 5


def test_preflight_names_an_unknown_dataset_a_batch_that_is_too_large_and_a_setting_without_effect(tmp_path):
    base = configs.icbm152_baseline()
    assert preflight(base, None, 1) == [] and len(data_digest(base, None)["sha256"]) == 64
    batch, foreground = preflight(replace(base, global_batch=81, foreground=0.5), None, 1)
    assert "exceeds the 80" in batch and "foreground has no effect" in foreground
    assert "no dataset moon" in preflight(replace(base, dataset="moon"), None, 1)[0]
    assert "no readable brats.json" in preflight(configs.brats_baseline(), tmp_path, 1)[0]


SMALL_BRATS = replace(
    configs.brats_baseline(), device="cpu", precision="fp32", widths=(2, 4), global_batch=2, eval_batch=5
)
OPTIONS = {"decode": False, "workers": 1}


def write(folder, kind, volume):
    nibabel.save(nibabel.Nifti1Image(volume.astype(np.int16), np.eye(4)), folder / f"{folder.name}_{kind}.nii.gz")


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Five scans of 24 x 28 x 6 voxels (x, y, z), with a head of 18 x 22 x 4 and a tumour of labels 1, 2 and 4, for a
    store of slices of 24 x 16 pixels."""
    monkeypatch.setattr(brats, "SIZE", (24, 16))
    for number in range(5):
        folder = tmp_path / "images" / f"BraTS2021_{number:05}"
        folder.mkdir(parents=True)
        random = np.random.default_rng(number)
        head = np.zeros((24, 28, 6))
        head[3:21, 3:25, 1:5] = random.integers(50, 500, (18, 22, 4))
        for place, kind in enumerate(brats.KINDS[:-1]):
            write(folder, kind, head * (place + 1))
        labels = np.zeros(head.shape)
        labels[3:5, 10, 2], labels[10:15, 10, 2], labels[16, 8:18, 2:4], labels[17, 9, 3] = 1, 2, 4, 1
        write(folder, "seg", labels)
    return tmp_path / "images"


def test_a_store_has_the_centre_of_each_head_normalized_and_label_4_as_class_3(images, tmp_path):
    known = prepare(SMALL_BRATS, tmp_path / "store", images=images, **OPTIONS)
    assert (known["train_samples"], known["eval_cases"], known["eval_samples"]) == (4, 1, 4)
    assert known["tumour voxels outside of the slices"] == 5  # one of two at the left edge of each
    store = brats.Store(tmp_path / "store")
    (name, *_), (case, *_) = store.split()["train"], store.read()["train"]
    slices = case.slices
    assert slices.shape == (4, 5, 24, 16) and slices.dtype == np.float16
    head = nibabel.load(images / name / f"{name}_t1.nii.gz").get_fdata()[3:21, 3:25, 1:5]
    wanted = ((head - head.mean()) / head.std())[1:17].T  # less a column at both sides, as rows between two of zeros
    np.testing.assert_allclose(slices[:, 1, 1:23], wanted, atol=2e-3)
    assert not slices[:, :, 0].any() and np.allclose(slices[:, 0], slices[:, 3], atol=2e-3)
    assert case.with_class == [[1, 2], [1], [1, 2]]
    assert (slices[1, 4] == 3).sum() == 10 and slices[1, 4, 1 + 8 - 3, 16 - 3 - 1] == 3
    assert prepare(SMALL_BRATS, tmp_path / "store", **{**OPTIONS, "decode": True}) == known


def test_broken_scans_are_named_and_finished_ones_are_kept(images, tmp_path):
    store, names = tmp_path / "store", sorted(path.name for path in images.iterdir())
    (images / names[0] / f"{names[0]}_t1ce.nii.gz").unlink()
    cut = images / names[1] / f"{names[1]}_t2.nii.gz"
    cut.write_bytes(cut.read_bytes()[:200])
    write(images / names[2], "seg", np.full((24, 28, 6), 3))
    write(images / names[3], "flair", np.ones((24, 28, 5)))
    with pytest.raises(DataError) as error:
        prepare(SMALL_BRATS, store, images=images, **OPTIONS)
    broken = str(error.value).splitlines()
    assert "1 of 5 scans could be converted" in broken[0] and len(broken) == 5
    for line, name in zip(broken[1:], ("_t1ce", "_t2", "_seg", "_flair"), strict=True):
        assert f"{name}.nii.gz: " in line
    good = store / brats.SCANS / f"{names[4]}.npy"
    kept = good.stat().st_mtime_ns
    for name, kind in zip(names, ("t1ce", "t2"), strict=False):
        write(images / name, kind, np.ones((24, 28, 6)))
    for name in names[2:4]:
        shutil.rmtree(images / name)
    assert prepare(SMALL_BRATS, store, images=images, **OPTIONS)["train_samples"] == 2
    assert good.stat().st_mtime_ns == kept
    good.write_bytes(b"cut")
    assert f"{names[4]}.npy: truncated" in preflight(SMALL_BRATS, store, 1)[0]
    prepare(SMALL_BRATS, store, images=images, **OPTIONS)
    assert preflight(SMALL_BRATS, store, 1) == []
    with pytest.raises(UsageError, match="--images makes a store of BraTS"):
        prepare(configs.icbm152_baseline(), store, images=images, **OPTIONS)


def test_a_run_draws_a_slice_of_each_scan_and_evaluates_every_slice_on_any_number_of_ranks(
    images, tmp_path, monkeypatch
):
    prepare(SMALL_BRATS, tmp_path / "store", images=images, **OPTIONS)
    cases = brats.Store(tmp_path / "store").read()
    for step in range(6):
        whole = next(SliceBatches(SMALL_BRATS, cases, ALONE).train(step))
        halves = [next(SliceBatches(SMALL_BRATS, cases, ProcessGroup(r, 2, r, CPU)).train(step)) for r in (0, 1)]
        assert torch.equal(whole.images, torch.cat([half.images for half in halves]))
        assert torch.equal(whole.masks, torch.cat([half.masks for half in halves]))
    always = SliceBatches(replace(SMALL_BRATS, foreground=1.0), cases, ALONE)
    assert all(batch.masks.flatten(1).any(1).all() for _, batch in zip(range(4), always.train(0), strict=False))
    losses = recorded_losses(monkeypatch)
    resizing = methods.ProgressiveResizing(start=0.5, delay=0.5, finetune=0.25, increment=8, interpolation="bilinear")
    config = replace(SMALL_BRATS, schedule=replace(SMALL_BRATS.schedule, epochs=2), methods=(resizing,))
    run = trained(config, data_folder=tmp_path / "store")
    assert len(losses) == 4 and np.isfinite(losses).all() and run.position.samples == 8
