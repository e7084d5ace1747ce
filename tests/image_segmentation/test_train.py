"""Runs on the ICBM 152 brain: its split, its thresholds, short runs and their logs, and the configs' numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from image_segmentation import configs, icbm152, train
from image_segmentation.datasets import data_digest, preflight
from image_segmentation.dice import mean_dice, overlaps
from mlevents import keys, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.one_rank import CPU, recorded_losses, trained
from timedrun import methods

pytest.importorskip("nibabel")
pytest.importorskip("nilearn")

THRESHOLDS = 0.925
"""Mean Dice of the best two thresholds within the brain, rounded down."""


def short(**changes):
    """One epoch of five steps on the tissues, with a small network, which its first evaluation does not end."""
    base = configs.icbm152_baseline()
    schedule, evaluation = replace(base.schedule, epochs=1), replace(base.evaluation, target=0.99, first=1)
    few = {"global_batch": 16, "widths": (2, 4), "max_epochs": 0, "schedule": schedule, "evaluation": evaluation}
    return replace(base, **(few | changes))


def evaluation_slices():
    cases = icbm152.read()["evaluation"]
    return torch.from_numpy(np.concatenate([case.slices for case in cases])), torch.arange(25) // icbm152.EVALUATION


def quality(predicted):
    slices, cases = evaluation_slices()
    counts = overlaps(predicted, slices[:, 1].long(), 4)
    return mean_dice(torch.zeros(5, 3, 2, dtype=torch.int64).index_add_(0, cases, counts))


def test_blocks_of_slices_are_apart_and_copied_labels_and_the_best_thresholds_stay_below_the_target():
    cases = icbm152.read()
    slices, _ = evaluation_slices()
    assert (len(cases["train"]), len(slices)) == (icbm152.FACTS.train_samples, icbm152.FACTS.eval_samples)
    assert slices.shape[1:] == (2, *icbm152.SIZE) and set(slices[:, 1].unique().tolist()) == {0, 1, 2, 3}
    rows = [icbm152.PERIOD * block + np.arange(icbm152.PERIOD) for block in range(icbm152.BLOCKS)]
    used = np.concatenate([block[: icbm152.TRAIN] for block in rows])
    held_out = np.concatenate([block[icbm152.TRAIN + icbm152.GAP :][: icbm152.EVALUATION] for block in rows])
    away = np.abs(used[:, None] - held_out)
    assert away.min() == icbm152.GAP + 1
    copied = torch.from_numpy(np.concatenate([case.slices for case in cases["train"]]))[away.argmin(0), 1]
    assert quality(copied.long()) < 0.45
    intensities, brain = slices[:, 0], slices[:, 1] > 0
    best = max(
        quality(brain.long() + (intensities >= low) * brain + (intensities >= high) * brain)
        for low in np.arange(-1.6, -0.5, 0.05)
        for high in np.arange(0.4, 1.0, 0.05)
    )
    assert THRESHOLDS < best < THRESHOLDS + 0.001 < configs.icbm152_baseline().evaluation.target - 0.005


def test_warm_up_leaves_the_losses_as_they_are(monkeypatch):
    losses = recorded_losses(monkeypatch)
    for steps in (0, 3):
        trained(short(warm_up_steps=steps))
    assert len(losses) == 10 and losses[:5] == losses[5:]


def test_a_micro_batch_has_its_part_in_the_loss_by_its_slices(monkeypatch):
    losses = recorded_losses(monkeypatch)
    monkeypatch.setattr(torch.nn, "BatchNorm2d", torch.nn.InstanceNorm2d)
    monkeypatch.setattr(
        train, "dice_cross_entropy", lambda logits, masks: torch.nn.functional.cross_entropy(logits, masks)
    )
    for micro in (0, 6):
        trained(short(micro_batch=micro))
    assert losses[:5] == pytest.approx(losses[5:], rel=1e-4)


RESIZING = methods.ProgressiveResizing(start=0.5, delay=0.2, finetune=0.2, increment=4, interpolation="bilinear")


@pytest.mark.parametrize(
    "chosen",
    [
        configs.icbm152_methods().methods,
        (methods.BlurPool(min_channels=2), RESIZING, methods.SWA(start=0.2, end=0.7, interval=0.1)),
    ],
)
def test_a_log_passes_the_strict_checks_and_states_its_rules_and_its_methods(chosen, tmp_path):
    config = short(methods=chosen, schedule=configs.Schedule(kind="cosine", epochs=2))
    trained(replace(config, evaluation=replace(config.evaluation, target=0.01, first=2)), RunLog(tmp_path / "log.txt"))
    log = record.read(tmp_path / "log.txt")
    assert log.status == keys.SUCCESS and log.value(keys.SUBMISSION_BENCHMARK) == "unet_brats"
    assert log.value(keys.EVAL_SAMPLES) == 25 and log.value(keys.DATASET) == "icbm152"
    assert check(tmp_path / "log.txt").passed


def test_run_start_is_on_disk_before_the_data_are_opened(tmp_path, monkeypatch):
    path = tmp_path / "result_0.txt"

    def refuse(folder):
        assert record.read(path).started is not None
        raise OSError("no data today")

    monkeypatch.setattr(icbm152, "read", refuse)
    with pytest.raises(OSError, match="no data today"):
        trained(short(), RunLog(path))


def test_warm_up_sees_every_size_of_progressive_resizing_once():
    config = short(methods=(RESIZING,), warm_up_steps=1, schedule=configs.Schedule(kind="cosine", epochs=9))
    steps = [step for step, _ in train.warm_up_batches(config, icbm152.FACTS, config.global_batch, CPU)]
    widths = [RESIZING.width(76, config.progress(step, 5)) for step in steps]
    assert widths == sorted({RESIZING.width(76, config.progress(step, 5)) for step in range(45)}) and len(widths) > 5


def test_preflight_names_an_unknown_dataset_a_batch_that_is_too_large_and_a_setting_without_effect(tmp_path):
    base = configs.icbm152_baseline()
    assert preflight(base, None, 1) == [] and len(data_digest(base, None)["sha256"]) == 64
    wrong = replace(base, global_batch=81, foreground=0.5)
    batch, foreground = preflight(wrong, None, 1)
    assert "exceeds the 80" in batch and "foreground has no effect" in foreground
    assert "no dataset moon" in preflight(replace(base, dataset="moon"), None, 1)[0]
    assert "no readable brats.json" in preflight(configs.brats_baseline(), tmp_path, 1)[0]
