"""Methods that repeat the passes of a step or do nothing, in the Trainers of transformers and Lightning."""

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from timedrun.methods import EMA, Hooks, Method, NoEffect, stack
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


def test_transformers_trainer_repeats_a_step_and_refuses_to_with_accumulation(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from timedrun.integrations.hugging_face import MethodsTrainer

    def trainer(speed: Any, **given: Any) -> tuple[Any, Net]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, learning_rate=0.1, max_grad_norm=0,
            lr_scheduler_type="constant", optim="sgd", report_to="none", disable_tqdm=True, use_cpu=True, **given,
        )  # fmt: skip
        model = Net()
        data = [{"pixel_values": torch.ones(1)} for _ in range(8)]
        return MethodsTrainer(speed, speed.model(model), arguments, train_dataset=data), model

    whole, model = trainer(stack(Twice()))
    whole.train()
    assert model.passes == 6 and CALLS == ["backward", "gradients"] * 3
    assert model.w.item() == pytest.approx(-0.3)  # the gradients of one pass
    with pytest.raises(ValueError, match="twice acts on `backward`"):
        trainer(stack(Twice()), gradient_accumulation_steps=2)
    plain, model = trainer(stack())
    plain.train()
    assert model.passes == 3 and model.w.item() == pytest.approx(-0.3)


def test_lightning_repeats_a_step_of_a_methods_module_and_refuses_others() -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from timedrun.integrations.lightning import MethodsCallback, MethodsModule

    class Trained:
        def __init__(self, speed: Any) -> None:
            super().__init__()
            self.net, self.speed = Net(), speed

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            images, _ = self.speed.batch(batch, batch, 2)
            return self.net(images)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.net.parameters(), lr=0.1)

    class Module(Trained, MethodsModule):
        pass

    class Other(Trained, pl.LightningModule):  # type: ignore[misc, name-defined]
        pass

    def fit(kind: Any, **given: Any) -> Any:
        module = kind(stack(Twice()))
        loader = torch.utils.data.DataLoader(torch.ones(6, 1), batch_size=2)  # type: ignore[arg-type]
        pl.Trainer(
            max_epochs=1, accelerator="cpu", callbacks=[MethodsCallback(module.speed)], logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **given,
        ).fit(module, loader)  # fmt: skip
        return module

    module = fit(Module)
    assert module.net.passes == 6 and CALLS == ["backward", "gradients"] * 3
    assert module.net.w.item() == pytest.approx(-0.3)
    with pytest.raises(ValueError, match=r"twice acts on `backward`.*derive Other from MethodsModule"):
        fit(Other)
    with pytest.raises(ValueError, match="accumulate no gradients"):
        fit(Module, accumulate_grad_batches=2)


@pytest.mark.parametrize(("interval", "steps", "words"), [(20, 3, "first effect after 20 optimizer steps"), (2, 3, "")])
def test_transformers_trainer_refuses_an_average_that_its_steps_do_not_reach(
    interval: int, steps: int, words: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from timedrun.integrations.hugging_face import MethodsTrainer

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=steps, report_to="none", disable_tqdm=True, use_cpu=True
    )
    speed = stack(EMA(half_life=40, update_interval=interval))
    model, data = Net(), [{"pixel_values": torch.ones(1)}] * 8
    trainer = MethodsTrainer(speed, speed.model(model), arguments, train_dataset=data)
    with pytest.raises(NoEffect, match=words) if words else nullcontext():
        trainer.train()
    assert bool(model.passes) is not bool(words)  # it is refused before the first step


def test_transformers_trainer_says_at_its_end_that_a_method_changed_nothing(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from timedrun.integrations.hugging_face import MethodsTrainer

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, report_to="none", disable_tqdm=True, use_cpu=True
    )
    speed, model = stack(Idle()), Net()
    trainer = MethodsTrainer(speed, speed.model(model), arguments, train_dataset=[{"pixel_values": torch.ones(1)}] * 8)
    with pytest.raises(NoEffect, match="changed nothing in this run: idle"):
        trainer.train()
    assert model.passes == 3


@pytest.mark.parametrize(
    ("method", "words"),
    [(EMA(half_life=40), "first effect after 20 optimizer steps"), (None, "nothing in this run: idle")],
)
def test_lightning_says_which_method_changes_nothing(method: Any, words: str) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from timedrun.integrations.lightning import MethodsCallback

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.net(batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.net.parameters(), lr=0.1)

    def fit(**given: Any) -> int:
        module = Module()
        pl.Trainer(
            accelerator="cpu", callbacks=[MethodsCallback(stack(method or Idle()))], logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **given,
        ).fit(module, torch.utils.data.DataLoader(torch.ones(6, 1), batch_size=2))  # type: ignore[arg-type]  # fmt: skip
        return module.net.passes

    with pytest.raises(NoEffect, match=words):
        fit(max_epochs=1)
    assert fit(fast_dev_run=True) == 1  # a trial of the loop, whose methods have no time to act
