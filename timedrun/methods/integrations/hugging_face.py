"""transformers' Trainer with methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from judging.ground.errors import TrainingLoopError, nearest
from mlevents.runlog.trainer_run import MLPerfRun
from timedrun.methods import Stack
from timedrun.methods.integrations import fitting_torchvision

with fitting_torchvision():
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint

STATE_FILE = "methods.pt"
PLACES = ("before_step", "batch_dict", "gradients", "after_step", "evaluation")
"""Places of methods that a Trainer calls in any case."""


def saved_state(checkpoint: str) -> dict[str, Any]:
    """Return the methods' state in a checkpoint. Raises TrainingLoopError if it has none.

    Examples:
        >>> saved_state("runs/checkpoint-500")
        Traceback (most recent call last):
            ...
        mlevents.errors.TrainingLoopError: the checkpoint runs/checkpoint-500 has no methods.pt, the methods' state ...
    """
    if not (file := Path(checkpoint, STATE_FILE)).is_file():
        raise TrainingLoopError(
            f"the checkpoint {checkpoint} has no {STATE_FILE}, the methods' state at its weights, and was not used;"
            " take one that MethodsTrainer saved, or, if it is the best of a training, no load_best_model_at_end"
        )
    return dict(torch.load(file, map_location="cpu", weights_only=True))


class _Steps(TrainerCallback):
    """Call the methods around each optimizer step and save their state in each checkpoint."""

    def __init__(self, speed: Stack) -> None:
        self._speed = speed

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **given: Any) -> None:
        self._speed.require_in(given["optimizer"])
        self._speed.require_reach(1 - 1 / state.max_steps, state.max_steps)
        if args.load_best_model_at_end and state.best_model_checkpoint:  # of the run that is resumed
            saved_state(state.best_model_checkpoint)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if not (args.load_best_model_at_end and state.best_model_checkpoint):
            self._speed.verify()

    def on_pre_optimizer_step(self, *states: Any, **given: Any) -> None:
        self._speed.gradients(given["model"])

    def on_step_end(self, *states: Any, **given: Any) -> None:
        self._speed.after_step(given["model"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if args.should_save:
            folder = Path(args.output_dir or ".", f"checkpoint-{state.global_step}")
            torch.save(self._speed.state_dict(), folder / STATE_FILE)


class MethodsTrainer(Trainer):
    """Train with a Trainer that passes batches through `speed`, whose `model` was already applied, and evaluates in
    `speed.evaluation`.

    Checkpoints hold the training weights and, in methods.pt, the methods' state. The state comes back with the weights:
    when a training is resumed, and of the best checkpoint at its end.

    Raises ValueError for methods that need tensors, not a dict, and for those that repeat a step's passes (`backward`)
    if gradients are accumulated: the Trainer runs each of its batches on its own. `train` raises TrainingLoopError for
    a checkpoint without methods.pt. It raises NoEffect for a method that its steps cannot reach, before the first one,
    or that changed nothing, after the last.

    Examples:
        >>> from timedrun.methods import EMA, stack
        >>> speed = stack(EMA(half_life=100))
        >>> arguments = TrainingArguments("runs", max_steps=1000, use_cpu=True, report_to="none")
        >>> trainer = MethodsTrainer(speed, speed.model(nn.Linear(4, 2)), arguments)
        >>> trainer.speed.methods[0].half_life
        100
    """

    def __init__(self, speed: Stack, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "model_init", None) is not None:
            raise ValueError("`train` takes a new model of model_init, without the methods; pass `speed.model(model)`")
        speed.require_places((*PLACES, "backward") if self.args.gradient_accumulation_steps == 1 else PLACES)
        assert isinstance(self.model, nn.Module)
        self.speed, self._network = speed, self.model
        self.add_callback(_Steps(speed))

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        step = self.state.global_step
        self.speed.before_step(self._network, step, step / self.state.max_steps)
        changed = (self.speed.batch_dict(batch) for batch in epoch_iterator)
        return super().get_batch_samples(changed, num_batches, device)

    def training_step(self, model: nn.Module, *given: Any, **named: Any) -> Tensor:
        def compute(reduced: bool) -> Tensor:
            with nullcontext() if reduced else self.accelerator.no_sync(model):
                loss: Tensor = super(MethodsTrainer, self).training_step(model, *given, **named)
            return loss

        return self.speed.backward(compute, self._network)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        with self.speed.evaluation(self._network):
            return super().evaluation_loop(*args, **kwargs)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir or ".")  # type: ignore[no-untyped-call]
        if folder:
            self.speed.load_state_dict(saved_state(str(folder)))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _load_best_model(self) -> None:
        self.speed.verify()  # before the state is that of an earlier step
        self.speed.load_state_dict(saved_state(str(self.state.best_model_checkpoint)))
        super()._load_best_model()


class MLPerfCallback(TrainerCallback):
    """Log a Trainer's training as `run`, on whose clock it starts, and stop it when the `metric` of an evaluation, such
    as "eval_accuracy", reaches the target.

    Evaluations of another set, before the first step and after the last are passed over.

    Examples:
        >>> from mlevents.runlog.trainer_run import mlperf_run
        >>> def train(trainer, settings):
        ...     with mlperf_run("bert", round="4.0", out="result_0.txt", **settings) as run:
        ...         trainer.add_callback(MLPerfCallback(run, "eval_accuracy"))
        ...         trainer.train()
    """

    def __init__(self, run: MLPerfRun, metric: str) -> None:
        self._run, self._metric = run, metric
        self._training = False
        self._due: bool | None = None  # None before the first
        self._others: set[str] = set()

    def on_train_begin(self, *states: Any, **given: Any) -> None:
        self._run.start()
        self._training = True

    def _before_evaluation(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if control.should_evaluate:
            self._require_metric()
            self._run.evaluating(**self._progress(state))
            self._due = True

    on_step_end = on_epoch_end = _before_evaluation

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **given: Any) -> TrainerControl:
        metrics = given["metrics"]
        if not self._training or not state.global_step:
            return control
        if self._metric not in metrics:
            self._others |= metrics.keys()
            return control
        self._due = False
        if self._run.evaluated(metrics[self._metric], **self._progress(state)):
            control.should_training_stop = True
        return control

    def on_train_end(self, *states: Any, **given: Any) -> None:
        self._training = False
        self._due = bool(self._others) if self._due is None else self._due
        self._require_metric()
        self._run.close()

    def _require_metric(self) -> None:
        if self._due:
            near = nearest(self._metric, self._others)
            raise TrainingLoopError(f"an evaluation has no metric {self._metric!r}; nothing was logged.{near}")

    def _progress(self, state: TrainerState) -> dict[str, float]:
        return self._run.progress(steps=state.global_step, epoch=state.epoch or 0.0)
