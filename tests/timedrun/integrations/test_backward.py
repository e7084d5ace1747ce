"""Methods in the Trainers of transformers and Lightning: their steps, progress and state, and what is refused."""

from contextlib import nullcontext
from datetime import timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from judging.ground.errors import TrainingLoopError
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
    """One weight w with the loss mean(w x), so that SGD's steps are known."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.passes = 0

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        self.passes += 1
        return {"loss": (self.w * pixel_values).mean()}


@pytest.fixture(autouse=True)
def no_calls(trainers) -> None:
    CALLS.clear()
    placed.clear()


def transformers_trainer(speed: Stack, folder: Path, **given: Any) -> tuple[Any, Net]:
    """Return the Trainer of three steps at a rate of 0.1, and its model."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from timedrun.integrations.hugging_face import MethodsTrainer

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=2, learning_rate=0.1, max_grad_norm=0,
        lr_scheduler_type="constant", optim="sgd", report_to="none", disable_tqdm=True, use_cpu=True,
        label_names=["pixel_values"], **given,
    )  # fmt: skip
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
    from timedrun.integrations import lightning

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
    trainer = pl.Trainer(
        accelerator="cpu", callbacks=[lightning.MethodsCallback(speed), *schedules], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **{"max_epochs": 1, **given},
    )  # fmt: skip
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
