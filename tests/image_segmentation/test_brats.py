"""A store of BraTS' layout: what is in it, which scans are named as broken, what is kept, and a run on it."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from image_segmentation import brats, configs
from image_segmentation.batches import SliceBatches
from image_segmentation.datasets import preflight
from image_segmentation.prepare import prepare
from judging.ground.errors import DataError, UsageError
from tests.one_rank import ALONE, recorded_losses, trained
from timedrun.methods import ProgressiveResizing
from timedrun.runner.distributed.process_group import ProcessGroup

nibabel = pytest.importorskip("nibabel")
CONFIG = replace(configs.brats_baseline(), device="cpu", precision="fp32", widths=(2, 4), global_batch=2, eval_batch=5)
OPTIONS = {"decode": False, "workers": 1}


def write(folder, kind, volume):
    file = folder / f"{folder.name}_{kind}.nii.gz"
    nibabel.save(nibabel.Nifti1Image(volume.astype(np.int16), np.eye(4)), file)


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
    known = prepare(CONFIG, tmp_path / "store", images=images, **OPTIONS)
    assert (known["train_samples"], known["eval_cases"], known["eval_samples"]) == (4, 1, 4)
    assert known["tumour voxels outside of the slices"] == 5  # one of two at the left edge of each
    cases = brats.read(tmp_path / "store")
    slices = cases["train"][0].slices
    assert slices.shape == (4, 5, 24, 16) and slices.dtype == np.float16
    name = brats.Store.open(tmp_path / "store").split()["train"][0]
    head = nibabel.load(images / name / f"{name}_t1.nii.gz").get_fdata()[3:21, 3:25, 1:5]
    wanted = ((head - head.mean()) / head.std())[1:17].T  # less a column at both sides, as rows between two of zeros
    np.testing.assert_allclose(slices[:, 1, 1:23], wanted, atol=2e-3)
    assert not slices[:, :, 0].any() and np.allclose(slices[:, 0], slices[:, 3], atol=2e-3)
    assert cases["train"][0].with_class == [[1, 2], [1], [1, 2]]
    assert (slices[1, 4] == 3).sum() == 10 and slices[1, 4, 1 + 8 - 3, 16 - 3 - 1] == 3
    assert prepare(CONFIG, tmp_path / "store", **{**OPTIONS, "decode": True}) == known


def test_broken_scans_are_named_and_finished_ones_are_kept(images, tmp_path):
    store, names = tmp_path / "store", sorted(path.name for path in images.iterdir())
    (images / names[0] / f"{names[0]}_t1ce.nii.gz").unlink()
    cut = images / names[1] / f"{names[1]}_t2.nii.gz"
    cut.write_bytes(cut.read_bytes()[:200])
    write(images / names[2], "seg", np.full((24, 28, 6), 3))
    write(images / names[3], "flair", np.ones((24, 28, 5)))
    with pytest.raises(DataError) as error:
        prepare(CONFIG, store, images=images, **OPTIONS)
    broken = str(error.value).splitlines()
    assert "1 of 5 scans could be converted" in broken[0] and len(broken) == 5
    for line, name in zip(broken[1:], ("_t1ce", "_t2", "_seg", "_flair"), strict=True):
        assert f"{name}.nii.gz: " in line
    kept = (store / brats.SCANS / f"{names[4]}.npy").stat().st_mtime_ns
    for name in names[:3]:
        shutil.rmtree(images / name)
        shutil.copytree(images / names[4], images / name)
        for file in (images / name).iterdir():
            file.rename(file.with_name(file.name.replace(names[4], name)))
    shutil.rmtree(images / names[3])
    assert prepare(CONFIG, store, images=images, **OPTIONS)["train_samples"] == 3
    assert (store / brats.SCANS / f"{names[4]}.npy").stat().st_mtime_ns == kept
    (store / brats.SCANS / f"{names[4]}.npy").write_bytes(b"cut")
    assert f"{names[4]}.npy: truncated" in preflight(CONFIG, store, 1)[0]
    prepare(CONFIG, store, images=images, **OPTIONS)
    assert preflight(CONFIG, store, 1) == []
    with pytest.raises(UsageError, match="--images makes a store of BraTS"):
        prepare(configs.icbm152_baseline(), store, images=images, **OPTIONS)


def test_a_run_draws_a_slice_of_each_scan_and_evaluates_every_slice_on_any_number_of_ranks(
    images, tmp_path, monkeypatch
):
    prepare(CONFIG, tmp_path / "store", images=images, **OPTIONS)
    cases, alone = brats.read(tmp_path / "store"), SliceBatches(CONFIG, brats.read(tmp_path / "store"), ALONE)
    for step in range(6):
        whole = next(alone.train(step))
        halves = [
            next(SliceBatches(CONFIG, cases, ProcessGroup(r, 2, r, torch.device("cpu"))).train(step)) for r in (0, 1)
        ]
        assert torch.equal(whole.images, torch.cat([half.images for half in halves]))
        assert torch.equal(whole.masks, torch.cat([half.masks for half in halves]))
    always = SliceBatches(replace(CONFIG, foreground=1.0), cases, ALONE)
    assert all(batch.masks.flatten(1).any(1).all() for _, batch in zip(range(4), always.train(0), strict=False))
    losses = recorded_losses(monkeypatch)
    resizing = ProgressiveResizing(start=0.5, delay=0.5, finetune=0.25, increment=8, interpolation="bilinear")
    config = replace(CONFIG, schedule=replace(CONFIG.schedule, epochs=2), methods=(resizing,))
    run = trained(config, data_folder=tmp_path / "store")
    assert len(losses) == 4 and np.isfinite(losses).all() and run.position.samples == 8
