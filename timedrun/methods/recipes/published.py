"""Published recipes for ResNet-50 on ImageNet-1k, number for number."""

from dataclasses import dataclass, replace
from typing import Literal

from timedrun.methods import (
    EMA,
    SAM,
    BlurPool,
    ChannelsLast,
    ColOut,
    LabelSmoothing,
    LogBias,
    Method,
    MixUp,
    ProgressiveResizing,
    RandAugment,
    StochasticDepth,
)
from timedrun.methods.training.initialisation import Initialisation
from timedrun.methods.training.optim import OptimizerConfig
from timedrun.methods.training.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Name methods and hyper-parameters of a run on ImageNet-1k, as published or as chosen here; `source` says which.

    Examples:
        >>> MILD.budgets, MILD.suits(90)
        ('9 to 66 epochs', False)
        >>> [method.name for method in MILD.methods][:2]
        ['log_bias', 'blurpool']
    """

    name: str
    series: str
    """Recipes of one series divide the budgets among them."""
    source: str
    methods: tuple[Method, ...]
    optimizer: OptimizerConfig
    schedule: Schedule
    """Its scale gives the usual budget; another scale stretches it."""
    loss: Literal["cross_entropy", "binary_cross_entropy"]
    global_batch: int = 2048
    train_size: int
    """Pixels per side of a training image."""
    eval_resize: int
    eval_size: int = 224
    initialisation: Initialisation
    target: float
    """Top-1 accuracy that ends a run."""
    first_epochs: int
    """The shortest run it is meant for."""
    last_epochs: int | None
    """The longest run it is meant for; None: any."""

    @property
    def budgets(self) -> str:
        """Return the lengths of the runs that it is meant for, in words."""
        if self.last_epochs is None:
            return f"{self.first_epochs} epochs or more"
        return f"{self.first_epochs} to {self.last_epochs} epochs"

    def suits(self, epochs: int) -> bool:
        """Return True if the recipe is meant for a run of `epochs` epochs."""
        return self.first_epochs <= epochs and (self.last_epochs is None or epochs <= self.last_epochs)


MILD = Recipe(
    name="mild",
    series="mosaicml_2022",
    source="MosaicML's Mild recipe of 2022 for ResNet-50 (Composer 0.7.1), schedules below 0.75 of 90 epochs; at 0.36"
    " MosaicML reports 76.64 % in 27 min on 8 A100. Its later repository fixes 36 epochs and is otherwise equal. Own"
    " choice: the target, MLPerf's, ends the run.",
    methods=(
        LogBias(),
        BlurPool(),
        ChannelsLast(),
        LabelSmoothing(smoothing=0.08),
        ProgressiveResizing(start=0.5, delay=0.4, finetune=0.2, increment=4),
        EMA(half_life=100, update_interval=20),
    ),
    optimizer=OptimizerConfig(kind="decoupled_sgd", peak_lr=2.048, momentum=0.875, weight_decay=5e-4),
    schedule=Schedule(kind="cosine", epochs=90, warmup_epochs=8, scale=0.36),
    loss="binary_cross_entropy",
    train_size=176,
    eval_resize=232,
    initialisation="kaiming_bn_uniform",
    target=0.759,
    first_epochs=9,  # the warm-up of 8 is not scaled
    last_epochs=66,
)


MEDIUM = replace(
    MILD,
    name="medium",
    source="MosaicML's Medium recipe of 2022 for ResNet-50 (Composer 0.7.1), schedules of 0.75 to 2.6 of 90 epochs, for"
    " which MosaicML reports 78.1 to 79.5 %. Own choices: 135 epochs, as MosaicML's later repository fixes, and the"
    " target, the lower end of what is reported.",
    methods=(
        LogBias(),
        BlurPool(),
        ChannelsLast(),
        LabelSmoothing(smoothing=0.1),
        MixUp(alpha=0.2, hard_partner=True),
        ProgressiveResizing(start=0.5, delay=0.4, finetune=0.2, increment=4),
        SAM(rho=0.5, interval=10),
        EMA(half_life=100, update_interval=20),
    ),
    schedule=replace(MILD.schedule, scale=1.5),
    target=0.781,
    first_epochs=67,
    last_epochs=234,
)


HOT = replace(
    MILD,
    name="hot",
    source="MosaicML's Hot recipe of 2022 for ResNet-50 (Composer 0.7.1), schedules above 2.6 of 90 epochs, for which"
    " MosaicML reports more than 79.5 %; its later repository has decay 5e-4, RandAugment's severity 9 and ColOut"
    " before the resizing. Stochastic depth is that of Composer 0.8: the published file does not start with 0.7.1. Own"
    " choices: 270 epochs, as the later repository fixes, and the target.",
    methods=(
        LogBias(),
        BlurPool(),
        StochasticDepth(kind="sample", rate=0.1, distribution="linear"),
        ChannelsLast(),
        RandAugment(severity=10, depth=1),
        LabelSmoothing(smoothing=0.13),
        MixUp(alpha=0.25, hard_partner=True),
        ProgressiveResizing(start=0.6, delay=0.2, finetune=0.2, increment=4),
        ColOut(p_row=0.05, p_col=0.05),
        SAM(rho=0.5, interval=5),
        EMA(half_life=100, update_interval=20),
    ),
    optimizer=replace(MILD.optimizer, weight_decay=3e-4),
    schedule=replace(MILD.schedule, scale=3.0),
    target=0.795,
    first_epochs=235,
    last_epochs=None,
)


BASELINE_NVIDIA = Recipe(
    name="baseline_nvidia",
    series="baseline_nvidia",
    source="NVIDIA's DeepLearningExamples, ResNet-50 v1.5 in PyTorch, 8 A100, 90 epochs, without MixUp: a point of"
    " comparison. Differences: there the rate changes once an epoch and begins at an eighth of its peak; biases and the"
    " shortcuts' norms decay; the classifier has torch's initialization. NVIDIA's README states"
    " 75.81 % in mixed precision and 76.04 % in fp32 for 50 epochs on 16 V100.",
    methods=(ChannelsLast(), LabelSmoothing(smoothing=0.1)),
    optimizer=OptimizerConfig(
        kind="sgd", peak_lr=2.048, momentum=0.875, weight_decay=2**-15, decay_norms_and_biases=False
    ),
    schedule=Schedule(kind="cosine", epochs=90, warmup_epochs=8),
    loss="cross_entropy",
    train_size=224,
    eval_resize=256,
    initialisation="kaiming",
    target=0.759,
    first_epochs=50,
    last_epochs=90,  # longer runs add MixUp
)

RESNET101_2021 = replace(
    MILD,
    name="resnet101_2021",
    series="resnet101_2021",
    source="MosaicML's composition of October 2021 for ResNet-101 (3.5 times as fast to 78.1 %), of which the names are"
    " published and not the numbers. Own choices: Composer's defaults, for SAM the 0.5 at interval 10 that its card"
    " advises, 54 epochs, which is one of the budgets of the methodology paper, and their range.",
    methods=(
        BlurPool(),
        ChannelsLast(),
        LabelSmoothing(smoothing=0.1),
        MixUp(alpha=0.2, hard_partner=True),
        ProgressiveResizing(start=0.5, delay=0.5, finetune=0.2, increment=4),
        SAM(rho=0.5, interval=10),
    ),
    schedule=replace(MILD.schedule, scale=0.6),
    loss="cross_entropy",
    train_size=224,
    eval_resize=256,
    target=0.781,
    first_epochs=22,
    last_epochs=90,
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (MILD, MEDIUM, HOT, RESNET101_2021, BASELINE_NVIDIA)}
"""Every recipe by its name."""


def budget_problem(name: str, epochs: int) -> str:
    """Return an error message if the recipe `name` is not meant for a run of `epochs` epochs, "" if it is.

    The message names the range and the recipes for this budget. Raises KeyError if there is no such recipe.

    Examples:
        >>> budget_problem("mild", 36)
        ''
        >>> print(budget_problem("mild", 90))
        recipe mild is meant for 9 to 66 epochs, not for 90; recipes for this budget: medium (67 to 234 epochs)
    """
    recipe = RECIPES[name]
    if recipe.suits(epochs):
        return ""
    others = [other for other in RECIPES.values() if other.series == recipe.series and other.suits(epochs)]
    fitting = ", ".join(f"{other.name} ({other.budgets})" for other in others)
    advice = f"recipes for this budget: {fitting}" if fitting else "no recipe is meant for this budget"
    return f"recipe {name} is meant for {recipe.budgets}, not for {epochs}; {advice}"
