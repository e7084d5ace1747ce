"""PyTorch Lightning's Trainer with methods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from judging.ground.errors import TrainingLoopError, nearest
from judging.trainer_log import MLPerfRun
from timedrun.integrations import fitting_torchvision
from timedrun.methods import Stack

with fitting_torchvision():
    from pytorch_lightning import Callback, LightningModule, Trainer

PLACES = ("before_step", "batch", "gradients", "after_step", "evaluation")
"""Places of methods that MethodsCallback calls for any module."""


class MethodsModule(LightningModule):
    """Module whose optimizer step calls `speed.backward`, for methods that repeat a step's passes. The subclass sets
    `speed`."""

    speed: Stack

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        assert optimizer_closure is not None
        passes = optimizer_closure
        super().optimizer_step(epoch, batch_idx, optimizer, lambda: self.speed.backward(lambda reduced: passes(), self))


class MethodsCallback(Callback):
    """Call `speed` around each optimizer step, evaluate in `speed.evaluation` and save its state in checkpoints.

    The module applies `speed.model` to its network and passes each training batch to `speed.batch` itself. Methods that
    repeat a step's passes (`backward`) need a MethodsModule without gradient accumulation; its `training_step` then
    runs again, batch included. `fit` raises NoEffect for a method that its steps cannot reach, before the first one, or
    that changed nothing, after the last.
    """

    def __init__(self, speed: Stack) -> None:
        speed.require_places((*PLACES, "backward"))
        self._speed = speed
        self._steps = 0
        self._begun = -1
        self._evaluation = ExitStack()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, MethodsModule) or trainer.accumulate_grad_batches > 1:
            try:
                self._speed.require_places(PLACES)
            except ValueError as error:
                raise ValueError(
                    f"{error}, or derive {type(pl_module).__name__} from MethodsModule and accumulate no gradients"
                ) from None
        for optimizer in trainer.optimizers:
            self._speed.require_in(optimizer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]  # a trial of the loop
            steps = trainer.estimated_stepping_batches
            self._speed.require_reach(1 - 1 / steps, steps)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._speed.verify()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, index: int) -> None:
        if trainer.global_step > self._begun:  # not before each micro-batch
            self._begun = trainer.global_step
            self._speed.before_step(pl_module, self._begun, self._begun / trainer.estimated_stepping_batches)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._speed.gradients(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *given: Any) -> None:
        if trainer.global_step > self._steps:  # not after each micro-batch
            self._steps = trainer.global_step
            self._speed.after_step(pl_module)

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation.enter_context(self._speed.evaluation(pl_module))

    def _end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation.close()

    on_validation_start = on_test_start = on_predict_start = _begin
    on_validation_end = on_test_end = on_predict_end = _end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._evaluation.close()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "methods": self._speed.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = state_dict["steps"]
        self._speed.load_state_dict(state_dict["methods"])


class MLPerfCallback(Callback):
    """Log a Trainer's `fit` as `run`, on whose clock training starts, and stop it when the target is reached.

    `metric` is the name with which the module logs the quality in validation.
    """

    def __init__(self, run: MLPerfRun, metric: str) -> None:
        self._run, self._metric = run, metric

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.start()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            batches = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            epoch = trainer.current_epoch + batches / trainer.num_training_batches
            self._run.evaluating(**self._run.progress(steps=trainer.global_step, epoch=epoch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self._metric not in trainer.callback_metrics:
            near = nearest(self._metric, trainer.callback_metrics)
            raise TrainingLoopError(f"validation logs no metric {self._metric!r}; nothing was logged.{near}")
        if self._run.evaluated(trainer.callback_metrics[self._metric].item()):
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._run.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._run.close(f"{type(exception).__name__}: {exception}")
