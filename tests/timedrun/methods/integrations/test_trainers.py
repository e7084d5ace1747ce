"""Methods and MLPerf logs in the Trainers of transformers and Lightning: steps, progress, state, refusals."""

from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from judging.ground.errors import TrainingLoopError
from mlevents import keys
from mlevents.checks.log_check import check
from mlevents.record import RunRecord, read
from mlevents.runlog.trainer_run import MLPerfRun, mlperf_run
from timedrun import methods
from timedrun.methods import EMA, SWA, Hooks, LabelSmoothing, Method, NoEffect, ProgressiveResizing, Stack, stack
from timedrun.methods.method import Compute, Position

CALLS: list[str] = []
placed: list[tuple[int, float]] = []


class TwiceHooks(Hooks):
    def backward(self, compute: Compute, model: nn.Module, at: Position) -> Tensor:
        compute(False)
        CALLS.append("backward")
        model.zero_grad()
        return compute(True)

    def gradients(self, model: nn.Module, at: Position) -> None:
        CALLS.append("gradients")

    def effect(self) -> str:
        return f"{len(CALLS)} calls"


class Twice(Method, name="twice", hooks=TwiceHooks):
    """A method that runs the passes twice."""


class Noting(Stack):
    def before_step(self, model: nn.Module, step: int, progress: float) -> None:
        placed.append((step, pytest.approx(progress)))
        super().before_step(model, step, progress)


class Idle(Method, name="idle"):
    """A method that changes nothing."""


class Net(nn.Module):
    """One weight w with the loss mean(w x), so that SGD's steps are known, and the logits x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.passes = 0

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        self.passes += 1
        return {"loss": (self.w * pixel_values).mean(), "logits": pixel_values}


@pytest.fixture(autouse=True)
def no_calls(trainers) -> None:
    CALLS.clear()
    placed.clear()


def transformers_arguments(folder: Path, **given: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    return transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, report_to="none", disable_tqdm=True, use_cpu=True,
        label_names=["pixel_values"], **given,
    )  # fmt: skip


def lightning_trainer(*callbacks: Any, **given: Any) -> Any:
    return pytest.importorskip("pytorch_lightning").Trainer(
        accelerator="cpu", callbacks=[*callbacks], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **given,
    )  # fmt: skip


def transformers_trainer(speed: Stack, folder: Path, **given: Any) -> tuple[Any, Net]:
    """Return the Trainer of three steps at a rate of 0.1, and its model."""
    settings = {"max_steps": 3, "learning_rate": 0.1, "max_grad_norm": 0, "lr_scheduler_type": "constant"}
    arguments = transformers_arguments(folder, **settings, optim="sgd", **given)
    from timedrun.methods.integrations.hugging_face import MethodsTrainer

    model, data = Net(), [{"pixel_values": torch.ones(1)} for _ in range(8)]
    return MethodsTrainer(speed, speed.model(model), arguments, train_dataset=data, eval_dataset=data), model


def test_transformers_trainer_repeats_a_step_and_refuses_to_with_accumulation(tmp_path):
    whole, model = transformers_trainer(stack(Twice()), tmp_path)
    whole.train()
    assert model.passes == 6 and CALLS == ["backward", "gradients"] * 3
    assert model.w.item() == pytest.approx(-0.3)  # the gradients of one pass
    with pytest.raises(ValueError, match="twice acts on `backward`"):
        transformers_trainer(stack(Twice()), tmp_path, gradient_accumulation_steps=2)
    plain, model = transformers_trainer(stack(), tmp_path)
    plain.train()
    assert model.passes == 3 and model.w.item() == pytest.approx(-0.3)


UNREACHED = (EMA(half_life=40), "first effect after 20 optimizer steps", 0)  # refused before the first step
IDLE = (Idle(), "nothing in this run: idle", 3)


@pytest.mark.parametrize(
    ("method", "words", "passes"), [UNREACHED, (EMA(half_life=40, update_interval=2), "", 3), IDLE]
)
def test_transformers_trainer_says_which_method_changes_nothing(method, words, passes, tmp_path):
    trainer, model = transformers_trainer(stack(method), tmp_path)
    with pytest.raises(NoEffect, match=words) if words else nullcontext():
        trainer.train()
    assert model.passes == passes


@pytest.mark.parametrize("method", [EMA(half_life=2, update_interval=1), SWA(start=0.3, end=0.6)])
def test_transformers_best_checkpoint_comes_back_with_the_methods_state_or_is_refused(method, tmp_path):
    given = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}
    given |= {"metric_for_best_model": "loss", "greater_is_better": True}  # the first
    trainer, model = transformers_trainer(stack(method), tmp_path, **given)
    trainer.train()
    assert trainer.state.best_metric == trainer.evaluate()["eval_loss"] == pytest.approx(-0.1)
    assert model.w.item() == pytest.approx(-0.1)
    for lacking in (1, 3):  # the best one, and the one to resume
        (tmp_path / f"checkpoint-{lacking}/methods.pt").unlink()
        again, model = transformers_trainer(stack(method), tmp_path, **given)
        with pytest.raises(TrainingLoopError, match=f"checkpoint-{lacking} has no methods.pt"):
            again.train(resume_from_checkpoint=True)
        assert model.passes == 0


@pytest.mark.parametrize("method", [LabelSmoothing(), methods.MixUp(), methods.CutMix()])
def test_transformers_trainer_refuses_at_construction_what_it_cannot_run(method, tmp_path):
    with pytest.raises(ValueError, match=f"{method.name} "):
        transformers_trainer(stack(method), tmp_path)
    transformers_trainer(stack(ProgressiveResizing()), tmp_path)
    with pytest.raises(ValueError, match="takes a new model of model_init"):
        type(transformers_trainer(stack(), tmp_path)[0])(stack(), model_init=Net)


def fitted(speed: Stack, base: str = "MethodsModule", manual: Any = (), resume: Any = None, **given: Any) -> Any:
    """Return Lightning's Trainer after it trained 3 batches an epoch with `speed` in a module derived from `base`;
    `manual`: the optimizers that step in each batch of an epoch; `schedule`: batches of a step from epochs on."""
    pl = pytest.importorskip("pytorch_lightning")
    from timedrun.methods.integrations import lightning

    class Module(getattr(lightning, base)):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.speed, self.automatic_optimization = Net(), speed, not manual

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            images, _ = self.speed.batch(batch, batch, 2)
            loss = self.net(images)["loss"]
            for number in manual[index] if manual else ():
                self.trainer.strategy._lightning_optimizers[number].step()
            return loss

        def predict_step(self, batch: Tensor, index: int) -> Any:
            return self.net(batch)

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(self.net.parameters(), lr=0.1) for _ in range(2 if (0, 1) in manual else 1)]

    loader = given.pop("loader", torch.utils.data.DataLoader(torch.ones(6, 1), batch_size=2))
    schedules = [pl.callbacks.GradientAccumulationScheduler(given.pop("schedule"))] if "schedule" in given else []
    trainer = lightning_trainer(lightning.MethodsCallback(speed), *schedules, **{"max_epochs": 1, **given})
    trainer.fit(Module(), loader, ckpt_path=resume)
    return trainer


def test_lightning_repeats_a_step_of_a_methods_module_and_says_which_method_changes_nothing():
    net = fitted(stack(Twice())).lightning_module.net
    assert net.passes == 6 and CALLS == ["backward", "gradients"] * 3
    assert net.w.item() == pytest.approx(-0.3)
    with pytest.raises(NoEffect, match=IDLE[1]):
        fitted(stack(IDLE[0]), "LightningModule")
    for method in (UNREACHED[0], IDLE[0]):  # a trial of the loop is too short for methods to act
        assert fitted(stack(method), "LightningModule", fast_dev_run=True).lightning_module.net.passes == 1


BOTH, SECOND = {"manual": ((0, 1),) * 3}, {"manual": ((), (0,), ())}  # as of a GAN; in the second batch of an epoch
ENDLESS = {"loader": repeat(torch.ones(2, 1))}


@pytest.mark.parametrize(
    ("given", "method", "expected"),
    [
        (BOTH | {"max_epochs": 2}, None, [0, 1, 2, 3, 4, 5]),
        (BOTH | {"max_epochs": 2, "max_steps": 6}, None, [0, 2, 4]),
        (SECOND | {"max_epochs": 2}, None, [0, 2, 5]),
        ({"max_epochs": 2, "accumulate_grad_batches": 2}, None, [0, 2, 3, 5]),
        ({"max_epochs": 2, "schedule": {1: 3}}, None, [0, 1, 2, 3]),
        ({"max_epochs": -1, "max_time": timedelta(seconds=4)}, None, [0, 1.5, 3, 4.5]),
        ({"max_epochs": 2, "max_steps": 3, "max_time": timedelta(seconds=4)}, None, [0, 2, 4]),
        (ENDLESS | {"max_epochs": -1, "max_steps": 3}, None, [0, 2, 4]),
        (ENDLESS | {"max_epochs": 3, "limit_train_batches": 1}, None, [0, 2, 4]),
        (BOTH, methods.GradientClipping(), "acts on `gradients`.*train by one optimizer"),
        ({}, *UNREACHED[:2]),
        ({"base": "LightningModule"}, Twice(), "acts on `backward`.*derive Module from MethodsModule"),
        ({"accumulate_grad_batches": 2}, Twice(), "acts on `backward`.*accumulate no gradients"),
        (SECOND, Twice(), "acts on `backward`.*optimize automatically"),
        ({"schedule": {1: 3}}, Twice(), "acts on `backward`.*accumulate no gradients"),
        ({"max_epochs": -1}, None, "nothing of known length ends this fit"),
        (ENDLESS, None, "nothing of known length ends this fit"),
        ({"max_epochs": 2, "schedule": {1: 3}}, SWA(end=0.6, start=0.1), "the last step begins at 0.5"),
    ],
)
def test_lightnings_own_steps_count_to_the_nearest_limit_or_are_refused(given, method, expected, monkeypatch):
    timer = pytest.importorskip("pytorch_lightning.callbacks").Timer
    monkeypatch.setattr(timer, "time_elapsed", lambda *stage: float(len(placed)))  # a step takes a second
    refused = isinstance(expected, str)
    with pytest.raises((ValueError, NoEffect), match=expected) if refused else nullcontext():
        fitted(Noting(*[method] if method else []), **given)
    assert placed == ([] if refused else [(step, at / 6) for step, at in enumerate(expected)])


def test_lightning_resumes_its_own_steps_and_refuses_a_checkpoint_without_the_methods_state(tmp_path):
    trainer, (whole, weights) = fitted(Noting(), **BOTH), (tmp_path / "whole.ckpt", tmp_path / "weights.ckpt")
    trainer.save_checkpoint(whole)
    trainer.save_checkpoint(weights, weights_only=True)
    fitted(Noting(), resume=whole, max_epochs=2, **BOTH)
    assert placed[3:] == [(step, step / 6) for step in (3, 4, 5)]
    trainer.predict(dataloaders=[torch.ones(1)], ckpt_path=whole)
    with pytest.raises(TrainingLoopError, match=r"weights.ckpt has no state of MethodsCallback"):
        trainer.predict(dataloaders=[torch.ones(1)], ckpt_path=weights)


QUALITIES = [0.1, 0.6, 0.9]


@pytest.fixture
def run(tmp_path: Path) -> MLPerfRun:
    """An open demonstration of ResNet with the target 0.5."""
    return mlperf_run(
        "resnet", round="4.0", out=tmp_path / "result_0.txt", submission_division="open", submission_org="Nobody",
        submission_platform="laptop", submission_status="onprem", cache_clear=True, seed=1, global_batch_size=2,
        train_samples=4, eval_samples=2, dataset="digits", quality_target=0.5,
    )  # fmt: skip


def course(record: RunRecord) -> list[tuple[str, Any]]:
    """The events from run_start on, each with the number of its epoch."""
    numbers = (keys.EPOCH_NUM, keys.FIRST_EPOCH_NUM)
    events = record.events[record.events.index(record.first(keys.RUN_START)) :]
    return [
        (event.key, next((event.metadata[name] for name in numbers if name in event.metadata), 0)) for event in events
    ]


TO_EPOCH_2 = [
    ("run_start", 0),
    *(("block_start", 1), ("block_stop", 1), ("eval_start", 1), ("eval_accuracy", 1), ("eval_stop", 1)),
    *(("block_start", 2), ("block_stop", 2), ("eval_start", 2), ("eval_accuracy", 2), ("eval_stop", 2)),
    ("run_stop", 2),
]


def logged_transformers_trainer(run: MLPerfRun, folder: Path, metric: str, **given: Any) -> Any:
    from timedrun.methods.integrations.hugging_face import MLPerfCallback

    arguments = transformers_arguments(
        folder, **{"eval_strategy": "epoch", "save_strategy": "no", "num_train_epochs": 3} | given
    )
    data, left = [{"pixel_values": torch.ones(1)}] * 4, iter(QUALITIES)
    return pytest.importorskip("transformers").Trainer(
        Net(), arguments, train_dataset=data, eval_dataset=data[:2], callbacks=[MLPerfCallback(run, metric)],
        compute_metrics=lambda _: {"accuracy": next(left)},
    )  # fmt: skip


def logged_lightning_trainer(run: MLPerfRun, metric: str, **given: Any) -> tuple[Any, Any, Any]:
    lightning = pytest.importorskip("pytorch_lightning")
    from timedrun.methods.integrations.lightning import MLPerfCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.left = Net(), iter(QUALITIES)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            if self.global_step == given.get("fails_at"):
                raise ZeroDivisionError("in a step")
            return self.net(batch)["loss"]

        def on_validation_epoch_end(self) -> None:
            self.log("accuracy", 0.9 if self.trainer.sanity_checking else next(self.left))

        def validation_step(self, batch: Tensor, index: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)
    return lightning_trainer(MLPerfCallback(run, metric), max_epochs=3), Module(), loader


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_trainer_ends_at_the_target_with_a_valid_log(run, tmp_path, library):
    if library == "transformers":
        trainer = logged_transformers_trainer(run, tmp_path, "eval_accuracy")
        fit = trainer.train
    else:
        trainer, module, loader = logged_lightning_trainer(run, "accuracy")
        fit = partial(trainer.fit, module, loader, loader)
    with run:
        fit()
        assert run.reached and (trainer.state if library == "transformers" else trainer).global_step == 4
    assert course(read(tmp_path / "result_0.txt")) == TO_EPOCH_2
    assert check(tmp_path / "result_0.txt", "4.0.0").passed


def test_an_exception_in_lightnings_trainer_aborts_the_run(run, tmp_path):
    trainer, module, loader = logged_lightning_trainer(run, "accuracy", fails_at=3)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module, loader, loader)
    stop = read(tmp_path / "result_0.txt").stopped
    assert stop is not None and stop.metadata["reason"] == "ZeroDivisionError: in a step"


def test_transformers_evaluations_of_other_sets_and_outside_of_training_are_passed_over(run, tmp_path):
    trainer = logged_transformers_trainer(run, tmp_path, "eval_a_accuracy", eval_on_start=True)
    data, left = trainer.eval_dataset, iter([0.9, 0.9, 0.9, 0.1, 0.9, 0.6, 0.9, 0.9])
    trainer.eval_dataset = {"a": data, "b": data}
    trainer.compute_metrics = lambda _: {"accuracy": next(left)}
    with run:
        trainer.evaluate(data)
        trainer.train()
        trainer.evaluate(data, metric_key_prefix="test")
    assert run.reached and course(read(tmp_path / "result_0.txt")) == TO_EPOCH_2


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_metric_that_transformers_trainer_does_not_give_aborts_the_run(run, tmp_path, epochs):
    trainer = logged_transformers_trainer(run, tmp_path, "eval_acuracy", num_train_epochs=epochs)
    with pytest.raises(TrainingLoopError, match="Did you mean eval_accuracy?"), run:
        trainer.train()
    assert read(tmp_path / "result_0.txt").status == keys.ABORTED
