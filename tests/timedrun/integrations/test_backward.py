"""Methods that repeat the passes of a step, in the Trainers of transformers and Lightning."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from timedrun.methods import Hooks, Method, stack
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


class Twice(Method, name="twice", hooks=TwiceHooks):
    """A method that runs the passes twice."""


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
