"""transformers' Trainer with methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from judging.ground.errors import TrainingLoopError, nearest
from judging.trainer_log import MLPerfRun
from timedrun.integrations import fitting_torchvision
from timedrun.methods import Stack

with fitting_torchvision():
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint

STATE_FILE = "methods.pt"
PLACES = ("before_step", "batch", "gradients", "after_step", "evaluation")
"""Places of methods that a Trainer calls in any case."""


class _Steps(TrainerCallback):
    """Call the methods around each optimizer step and save their state in each checkpoint."""

    def __init__(self, speed: Stack) -> None:
        self._speed = speed

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        self._speed.require_in(given["optimizer"])
        self._speed.require_reach(1 - 1 / state.max_steps, state.max_steps)

    def on_train_end(self, *states: Any, **given: Any) -> None:
        self._speed.verify()

    def on_pre_optimizer_step(self, *states: Any, **given: Any) -> None:
        self._speed.gradients(given["model"])

    def on_step_end(self, *states: Any, **given: Any) -> None:
        self._speed.after_step(given["model"])

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir or ".", f"checkpoint-{state.global_step}")
            torch.save(self._speed.state_dict(), folder / STATE_FILE)


class MethodsTrainer(Trainer):
    """Trainer that passes training batches through `speed`, whose `model` was already applied, and evaluates in
    `speed.evaluation`. Checkpoints hold the training weights and, in methods.pt, the methods' state for a resumption.

    Raises ValueError for methods that repeat a step's passes (`backward`) if gradients are accumulated: the Trainer
    runs each of its batches on its own. `train` raises NoEffect for a method that its steps cannot reach, before the
    first one, or that changed nothing, after the last.
    """

    def __init__(self, speed: Stack, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
            self.speed.load_state_dict(torch.load(Path(folder) / STATE_FILE, map_location="cpu", weights_only=True))
        return super().train(resume_from_checkpoint, *args, **kwargs)


class MLPerfCallback(TrainerCallback):
    """Log a Trainer's training as `run`, on whose clock it starts, and stop it when the target is reached.

    `metric` is the name of the quality in the metrics of an evaluation ("eval_accuracy"). Evaluations of another set,
    before the first step and after the last are passed over.
    """

    def __init__(self, run: MLPerfRun, metric: str) -> None:
        self._run, self._metric = run, metric
        self._training = False
        self._due: bool | None = None  # None before the first
        self._others: set[str] = set()

    def on_train_begin(self, *states: Any, **given: Any) -> None:
        self._run.start()
        self._training = True

    def _before_evaluation(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        if control.should_evaluate:
            self._require_metric()
            self._run.evaluating(**self._progress(state))
            self._due = True

    on_step_end = on_epoch_end = _before_evaluation

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> TrainerControl:
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
