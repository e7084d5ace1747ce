"""PyTorch Lightning's Trainer with methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from judging.ground.errors import TrainingLoopError, nearest
from mlevents.runlog.trainer_run import MLPerfRun
from timedrun.methods import Stack
from timedrun.methods.integrations import fitting_torchvision

with fitting_torchvision():
    from pytorch_lightning import Callback, LightningModule, Trainer
    from pytorch_lightning.callbacks import GradientAccumulationScheduler, Timer


class MethodsModule(LightningModule):
    """Call `speed.backward`, which the subclass sets, in a module's optimizer step, for methods that repeat passes.

    Examples:
        >>> from timedrun.methods import SAM, stack
        >>> class Classifier(MethodsModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.speed = stack(SAM(rho=0.05))
        ...         self.net = self.speed.model(nn.Linear(4, 2))
        >>> Classifier().speed.methods[0].name
        'sam'
    """

    speed: Stack

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        assert optimizer_closure is not None
        passes = optimizer_closure
        super().optimizer_step(epoch, batch_idx, optimizer, lambda: self.speed.backward(lambda reduced: passes(), self))


class MethodsCallback(Callback):
    """Call `speed` around each optimizer step, evaluate in `speed.evaluation` and save its state in checkpoints.

    The module applies `speed.model` to its network and passes each training batch to `speed.batch` itself. A step ends
    with a batch in which an optimizer stepped; progress is that of the nearest limit: epochs, `max_steps`, `max_time`.
    Methods that repeat a step's passes (`backward`) need a MethodsModule, whose `training_step` runs again.

    `fit` raises ValueError for methods that it cannot call once a step and without a limit of known length. As each
    evaluation does, it raises TrainingLoopError for a checkpoint without the methods' state. It raises NoEffect for a
    method that its steps cannot reach, before the first one, or that changed nothing, after the last.

    Examples:
        >>> from timedrun.methods import EMA, stack
        >>> speed = stack(EMA(half_life=100))
        >>> trainer = Trainer(max_epochs=3, callbacks=[MethodsCallback(speed)], logger=False, accelerator="cpu")
    """

    def __init__(self, speed: Stack) -> None:
        speed.require_places(("before_step", "batch", "backward", "gradients", "after_step", "evaluation"))
        self._speed = speed
        self._steps = 0
        self._loaded: Any = None
        self._evaluation = ExitStack()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._timers = [each for each in callbacks if isinstance(each, Timer) and each.time_remaining() is not None]
        schedules = [each for each in callbacks if isinstance(each, GradientAccumulationScheduler)]
        self._accumulation = (*schedules, GradientAccumulationScheduler({0: trainer.accumulate_grad_batches}))[0]
        whole = isinstance(pl_module, MethodsModule) and pl_module.automatic_optimization
        whole, single = whole and not self._accumulation.going_to_accumulate_grad_batches(), len(trainer.optimizers) < 2
        own = f"derive {type(pl_module).__name__} from MethodsModule, optimize automatically, accumulate no gradients"
        for place, once, remedy in (("backward", whole, own), ("gradients", single, "train by one optimizer")):
            if not once and (acting := ", ".join(self._speed.acting_at(place))):
                raise ValueError(
                    f"{acting} acts on `{place}`, which this fit does not call once a step; no step was taken; remove"
                    f" it from the methods, or {remedy}"
                )
        self._speed.require_in(*trainer.optimizers)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._require_state(trainer)
        self._optimizer_steps, self._begun = trainer.global_step, False
        batches, most = trainer.num_training_batches, trainer.max_steps
        epochs = range(trainer.max_epochs or 0) if batches < math.inf else range(0)
        ends = [(math.inf, 1.0) for _ in self._timers]  # steps, and the share that is done before the last of them
        ends += [(most, 1 - 1 / most)] if most > 0 else []
        if epochs:
            sizes = [self._accumulation.get_accumulate_grad_batches(epoch) for epoch in epochs]
            last = (batches - 1) % sizes[-1] + 1  # batches of the last step
            ends.append((sum(math.ceil(batches / size) for size in sizes), 1 - last / (batches * len(epochs))))
        if not ends:
            raise ValueError(
                "nothing of known length ends this fit, so its progress is unknown; no step was taken; give the Trainer"
                " max_steps, max_time, or max_epochs and a loader with a length"
            )
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]  # a trial of the loop
            steps, reach = min(ends)
            self._speed.require_reach(reach, steps)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._speed.verify()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, index: int) -> None:
        if self._begun:  # at an earlier batch of the step
            return
        self._begun, batches = True, trainer.num_training_batches
        shares = [0.0, trainer.global_step / trainer.max_steps]  # below 0 without that limit
        if batches < math.inf:
            shares.append((trainer.current_epoch * batches + index) / (batches * (trainer.max_epochs or -1)))
        for timer in self._timers:
            done = timer.time_elapsed() / (timer.time_elapsed() + (timer.time_remaining() or 0.0))
            shares.append(trainer.strategy.broadcast(min(1.0, done)))  # ranks take the same steps
        self._speed.before_step(pl_module, self._steps, max(shares))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._speed.gradients(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *given: Any) -> None:
        if trainer.global_step > self._optimizer_steps:  # not after each micro-batch
            self._optimizer_steps, self._begun = trainer.global_step, False
            self._steps += 1
            self._speed.after_step(pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._loaded = trainer.ckpt_path if self.state_key in checkpoint["callbacks"] else None

    def _require_state(self, trainer: Trainer) -> None:
        if trainer.ckpt_path not in (None, self._loaded):
            raise TrainingLoopError(
                f"the checkpoint {trainer.ckpt_path} has no state of MethodsCallback at its weights, and was not used;"
                " take one that was saved with it and without save_weights_only, or begin a fit at its weights"
            )

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._require_state(trainer)
        self._evaluation.enter_context(self._speed.evaluation(pl_module))

    def _end(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException | None = None) -> None:
        self._evaluation.close()

    on_validation_start = on_test_start = on_predict_start = _begin
    on_validation_end = on_test_end = on_predict_end = on_exception = _end

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "methods": self._speed.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = state_dict["steps"]
        self._speed.load_state_dict(state_dict["methods"])


class MLPerfCallback(Callback):
    """Log a Trainer's `fit` as `run`, on whose clock training starts, and stop it when the `metric` that the module
    logs in validation reaches the target.

    Examples:
        >>> from mlevents.runlog.trainer_run import mlperf_run
        >>> def fit(model, data, settings):
        ...     with mlperf_run("resnet", round="4.0", out="result_0.txt", **settings) as run:
        ...         Trainer(max_epochs=90, callbacks=[MLPerfCallback(run, "accuracy")]).fit(model, data)
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
