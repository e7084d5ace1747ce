"""Methods that repeat the passes of a step or do nothing, in the Trainers of transformers and Lightning."""

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from timedrun.methods import EMA, Hooks, Method, NoEffect, Stack, stack
from timedrun.methods.method import Compute, Position

CALLS: list[str] = []


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
def no_calls(torchvision: ModuleType) -> None:
    CALLS.clear()


def transformers_trainer(speed: Stack, folder: Path, **given: Any) -> tuple[Any, Net]:
    """Return the Trainer of three steps at a rate of 0.1, and its model."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from timedrun.integrations.hugging_face import MethodsTrainer

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=2, learning_rate=0.1, max_grad_norm=0,
        lr_scheduler_type="constant", optim="sgd", report_to="none", disable_tqdm=True, use_cpu=True, **given,
    )  # fmt: skip
    model, data = Net(), [{"pixel_values": torch.ones(1)} for _ in range(8)]
    return MethodsTrainer(speed, speed.model(model), arguments, train_dataset=data), model


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


def fitted(speed: Stack, base: str = "MethodsModule", **given: Any) -> Net:
    """Return the model that Lightning trained with `speed` in a module derived from `base`."""
    pl = pytest.importorskip("pytorch_lightning")
    from timedrun.integrations import lightning

    class Module(getattr(lightning, base)):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.speed = Net(), speed

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            images, _ = self.speed.batch(batch, batch, 2)
            return self.net(images)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.net.parameters(), lr=0.1)

    module = Module()
    pl.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[lightning.MethodsCallback(speed)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **given,
    ).fit(module, torch.utils.data.DataLoader(torch.ones(6, 1), batch_size=2))  # fmt: skip
    return module.net


def test_lightning_repeats_a_step_of_a_methods_module_and_refuses_others():
    net = fitted(stack(Twice()))
    assert net.passes == 6 and CALLS == ["backward", "gradients"] * 3
    assert net.w.item() == pytest.approx(-0.3)
    with pytest.raises(ValueError, match=r"twice acts on `backward`.*derive Module from MethodsModule"):
        fitted(stack(Twice()), "LightningModule")
    with pytest.raises(ValueError, match="accumulate no gradients"):
        fitted(stack(Twice()), accumulate_grad_batches=2)


@pytest.mark.parametrize(("method", "words"), [UNREACHED[:2], IDLE[:2]])
def test_lightning_says_which_method_changes_nothing(method, words):
    with pytest.raises(NoEffect, match=words):
        fitted(stack(method), "LightningModule")
    assert fitted(stack(method), fast_dev_run=True).passes == 1  # a trial of the loop, too short for methods to act
