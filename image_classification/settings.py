"""Settings of a run of image classification."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import tyro

from image_classification.augmentation import Flip, PaddingMode
from image_classification.model import ModelConfig
from image_classification.stores.manifest import StoreConfig
from judging.ground.cores import usable_cores
from timedrun.methods import ChannelsLast, ProgressiveResizing
from timedrun.methods.recipes import RECIPES, Recipe, budget_problem
from timedrun.methods.training.loss import LossName
from timedrun.runner.config import LATER, EpochRunConfig, EvaluationConfig, Split, override

LoaderName = Literal["pillow", "turbojpeg", "raw", "ffcv"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Source of images, their preprocessing and their loader."""

    source: Literal["digits", "cifar10", "image_folder", "synthetic"]
    train_size: int
    """Pixels per side of a training image."""
    eval_size: int
    eval_resize: int = 0
    """image_folder: pixels of the short side before the centre crop of `eval_size`."""
    padding: int = 0
    """Sources in memory: random crop after padding by this many pixels; 0: none."""
    padding_mode: PaddingMode = "black"
    """Sources in memory: black, or the image's own pixels mirrored at the edge."""
    flip: Flip = "random"
    """Mirror training images left to right: never, half of them at random, or each one in every other epoch."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    eval_batch: int = 1000
    """Images in one evaluation forward pass over all ranks."""
    drop_last: tyro.conf.Fixed[Literal[True]] = True
    """Ended; it stays for the digests of runs in results/. The incomplete last batch of an epoch is dropped, other
    samples in each."""
    loader: LoaderName = "pillow"
    """image_folder: the loader of stored images. pillow is the reference and reads format jpeg."""
    store: StoreConfig = field(default_factory=StoreConfig)
    """image_folder: the format of the store."""
    workers: int = -1
    """image_folder: decoding processes (pillow) or threads (other loaders) per rank; -1: as many as each rank of the
    node has cores, less one."""
    prefetch: int = 3
    """image_folder: batches of a rank prefetched. 0: none; a loader's workers decode ahead even so."""
    order: tyro.conf.Fixed[Literal["random"]] = "random"
    order_block: tyro.conf.Fixed[Literal[256]] = 256
    order_window: tyro.conf.Fixed[Literal[64]] = 64
    read_ahead: tyro.conf.Fixed[Literal[False]] = False
    """These four have ended; they stay for the digests of runs in results/, all of which have these values."""
    synthetic_train: int = 0
    synthetic_eval: int = 0
    synthetic_classes: int = 10
    repeats: int = field(default=1, metadata=LATER)
    """Repeated augmentation: have each image this often in an epoch, in one batch, cropped and augmented anew each
    time; an epoch has as many images fewer (Hoffer et al. 2019, arXiv 1901.09335)."""
    split: Split = field(default="own", metadata=LATER)
    """digits, cifar10: tuning: hold the last quarter, or tenth, of the training images out and evaluate on them."""

    @property
    def workers_here(self) -> int:
        """Return the workers of a rank on this machine."""
        if self.workers >= 0:
            return self.workers
        return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1)


@dataclass(frozen=True, kw_only=True)
class ImageRunConfig(EpochRunConfig):
    """A run of image classification."""

    model: ModelConfig
    data: DataConfig
    loss: LossName = "cross_entropy"
    progress_unit: Literal["epoch", "step"] = "epoch"
    """Unit in which methods see the progress of the run. epoch: as in the 2022 runs, input sizes change between epochs
    only; step: a ramp moves at every step."""
    recipe: str = "none"
    """Recipe whose range of budgets a run must keep to (timedrun.methods.recipes); none: any budget."""

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return `values` with the name of a flip for the switch in runs of results/, which stored images ignored."""
        values = super().upgraded(values)
        data = values.get("data")
        if not isinstance(data, dict) or not isinstance(data.get("flip"), bool):
            return values
        flipped = data["flip"] or data.get("source") == "image_folder"
        return {**values, "data": {**data, "flip": "random" if flipped else "none"}}

    def equivalents(self) -> list[str]:
        changes = [] if any(isinstance(method, ChannelsLast) for method in self.methods) else ["+channels_last"]
        if self.data.source == "image_folder":
            cores = usable_cores()
            numbers = sorted({max(1, cores // 2), max(1, cores - 1), cores} - {self.data.workers_here})
            changes += [f"data.workers {number}" for number in numbers]
        return changes + super().equivalents()

    def with_recipe(self, epochs: int = 0, overrides: Sequence[str] = ()) -> Self:
        epochs = epochs or self.schedule.epochs_scaled
        if self.dataset != "imagenet":
            return super().with_recipe(epochs, overrides)
        recipe = next(entry for entry in RECIPES.values() if entry.series == "mosaicml_2022" and entry.suits(epochs))
        config = override(self.of_recipe(recipe), overrides)
        return replace(config, schedule=replace(config.schedule, scale=epochs / config.schedule.epochs))

    def of_recipe(self, recipe: Recipe) -> Self:
        """Return this config with everything that `recipe` says, at its usual budget."""
        return replace(
            self,
            name=f"{self.dataset}_{recipe.name}",
            notes=recipe.source,
            recipe=recipe.name,
            global_batch=recipe.global_batch,
            loss=recipe.loss,
            model=replace(self.model, initialisation=recipe.initialisation),
            data=replace(
                self.data, train_size=recipe.train_size, eval_resize=recipe.eval_resize, eval_size=recipe.eval_size
            ),
            schedule=recipe.schedule,
            optimizer=recipe.optimizer,
            evaluation=EvaluationConfig(target=recipe.target),
            methods=recipe.methods,
        )

    def problems(self) -> list[str]:
        """Return the settings that contradict each other or the recipe, as messages."""
        problems = []
        if self.recipe != "none" and self.recipe not in RECIPES:
            problems.append(f"recipe {self.recipe} does not exist; recipes: {', '.join(RECIPES)}, or none.")
        elif self.recipe != "none" and (problem := budget_problem(self.recipe, self.schedule.epochs_scaled)):
            problems.append(
                f"{problem}. Set --schedule.scale (epochs / {self.schedule.epochs}), run the config of another recipe,"
                " or lift the limit with --recipe none."
            )
        if self.data.repeats < 1:
            problems.append(f"data.repeats {self.data.repeats} is below 1; set --data.repeats to 1 or more.")
        if self.data.padding < 0:
            problems.append(f"data.padding {self.data.padding} is negative; set --data.padding to 0 or more.")
        loader = [m for m in self.methods if isinstance(m, ProgressiveResizing) and m.where == "loader"]
        if loader and self.progress_unit == "step":
            problems.append(
                "progress_unit step: a loader decodes all images of an epoch at one size; set --progress-unit epoch or"
                " --methods.progressive-resizing.where batch."
            )
        return problems

    def epoch_part(self, step: int, train_samples: int) -> float:
        """Return the part of an epoch that is over when its `step` begins."""
        return step / self.epoch_steps(train_samples)

    def progress(self, epoch: int, done: float = 0.0) -> float:
        """Return the elapsed fraction of the schedule, for methods, when the fraction `done` of `epoch` is over."""
        elapsed = epoch - 1 + (done if self.progress_unit == "step" else 0.0)
        return min(1.0, elapsed / self.schedule.epochs_scaled)
