"""Named configs: `<data>_<config>`. The text of a `methods` function is its whole difference from its baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from image_classification.data import IMAGENET_MEAN, IMAGENET_STD, DataConfig
from image_classification.model import RESNET50, ModelConfig
from timedrun.config import EvaluationConfig, OptimizerConfig, RunConfig
from timedrun.methods import EMA, BlurPool, ChannelsLast, LabelSmoothing, LogBias, ProgressiveResizing
from timedrun.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class ImageRunConfig(RunConfig):
    """A run of image classification."""

    model: ModelConfig
    data: DataConfig
    loss: Literal["cross_entropy", "binary_cross_entropy"] = "cross_entropy"


def imagenet_baseline() -> ImageRunConfig:
    """MosaicML's open-division baseline of MLPerf v2.0 (110.5 min on 8 A100), number for number."""
    return ImageRunConfig(
        benchmark="image_classification",
        name="imagenet_baseline",
        notes="Hyper-parameters of MosaicML's MLPerf Training v2.0 open submission, ResNet-50 baseline.",
        dataset="imagenet",
        global_batch=2048,
        micro_batch=256,
        precision="fp16",
        model=RESNET50,
        data=DataConfig(
            source="image_folder",
            train_size=224,
            eval_resize=256,
            eval_size=224,
            eval_batch=2048,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        ),
        schedule=Schedule(kind="cosine", epochs=90, warmup_epochs=8),
        optimizer=OptimizerConfig(kind="decoupled_sgd", peak_lr=2.048, momentum=0.875, weight_decay=5e-4),
        evaluation=EvaluationConfig(target=0.759, every=4, first=4),
        methods=(ChannelsLast(), LabelSmoothing(smoothing=0.1)),
    )


def imagenet_methods() -> ImageRunConfig:
    """MosaicML's open-division methods entry of MLPerf v2.0 (23.8 min on 8 A100), number for number."""
    baseline = imagenet_baseline()
    return replace(
        baseline,
        name="imagenet_methods",
        notes="Hyper-parameters of MosaicML's MLPerf Training v2.0 open submission, ResNet-50 methods.",
        loss="binary_cross_entropy",
        data=replace(baseline.data, train_size=176, eval_resize=232),
        schedule=replace(baseline.schedule, scale=0.32),
        evaluation=EvaluationConfig(target=0.759, every=3, first=3),
        methods=(
            LogBias(),
            BlurPool(),
            ChannelsLast(),
            LabelSmoothing(smoothing=0.08),
            ProgressiveResizing(start=0.5, delay=0.4, finetune=0.2, increment=4),
            EMA(half_life=100, update_interval=20),
        ),
    )


def synthetic_smoke() -> ImageRunConfig:
    """Noise with random labels: proves in seconds that a machine can run, log and check; reaches no real quality."""
    return ImageRunConfig(
        benchmark="image_classification",
        name="synthetic_smoke",
        notes="No task: the target is below chance so that the first evaluation ends the run.",
        dataset="synthetic",
        global_batch=64,
        model=ModelConfig(block="basic", layers=(1, 1), widths=(16, 32), stem="small", channels=3, classes=10),
        data=DataConfig(
            source="synthetic",
            train_size=16,
            eval_size=16,
            eval_batch=64,
            mean=(0.5, 0.5, 0.5),
            std=(0.25, 0.25, 0.25),
            synthetic_train=512,
            synthetic_eval=128,
        ),
        schedule=Schedule(kind="cosine", epochs=2, warmup_epochs=1),
        optimizer=OptimizerConfig(kind="sgd", peak_lr=0.05, momentum=0.9, weight_decay=5e-4),
        evaluation=EvaluationConfig(target=0.01),
        methods=(BlurPool(), EMA(half_life=4, update_interval=1)),
    )
