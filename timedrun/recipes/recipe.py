"""A recipe: methods and hyper-parameters that were chosen together, and the budgets they are meant for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timedrun.config import OptimizerConfig
from timedrun.methods import Method
from timedrun.training.initialisation import Initialisation
from timedrun.training.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Methods and hyper-parameters of a run on ImageNet-1k, as published or as chosen here; `source` says which."""

    name: str
    series: str
    """Recipes of one series divide the budgets among them."""
    source: str
    methods: tuple[Method, ...]
    optimizer: OptimizerConfig
    schedule: Schedule
    """Its scale gives the usual budget; another scale stretches it."""
    """Unit in which methods see the progress of the run."""
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
        """The range of budgets, in words."""
        return (
            f"{self.first_epochs} epochs or more"
            if self.last_epochs is None
            else (f"{self.first_epochs} to {self.last_epochs} epochs")
        )

    def suits(self, epochs: int) -> bool:
        """Return True if the recipe is meant for a run of `epochs` epochs."""
        return self.first_epochs <= epochs and (self.last_epochs is None or epochs <= self.last_epochs)
