"""MLPerf logs of the Trainers of transformers and Lightning, each on three evaluations of one weight."""

from functools import partial
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

QUALITIES = [0.1, 0.6, 0.9]


pytestmark = pytest.mark.usefixtures("trainers")


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


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        loss = (self.w * pixel_values).mean()
        return {"loss": loss, "logits": pixel_values}


def transformers_trainer(run: MLPerfRun, folder: Path, metric: str, **given: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from timedrun.integrations.hugging_face import MLPerfCallback

    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, eval_strategy="epoch", save_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=True, label_names=["pixel_values"],
        **{"num_train_epochs": 3, **given},
    )  # fmt: skip
    data = [{"pixel_values": torch.ones(1)}] * 4
    left = iter(QUALITIES)
    return transformers.Trainer(
        Net(), arguments, train_dataset=data, eval_dataset=data[:2], callbacks=[MLPerfCallback(run, metric)],
        compute_metrics=lambda _: {"accuracy": next(left)},
    )  # fmt: skip


def lightning_trainer(run: MLPerfRun, metric: str, **given: Any) -> tuple[Any, Any, Any]:
    lightning = pytest.importorskip("pytorch_lightning")
    from timedrun.integrations.lightning import MLPerfCallback

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

    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[MLPerfCallback(run, metric)],
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=2)
    return trainer, Module(), loader


@pytest.mark.parametrize("library", ["transformers", "lightning"])
def test_a_trainer_ends_at_the_target_with_a_valid_log(run, tmp_path, library):
    if library == "transformers":
        trainer = transformers_trainer(run, tmp_path, "eval_accuracy")
        fit = trainer.train
    else:
        trainer, module, loader = lightning_trainer(run, "accuracy")
        fit = partial(trainer.fit, module, loader, loader)
    with run:
        fit()
        assert run.reached and (trainer.state if library == "transformers" else trainer).global_step == 4
    assert course(read(tmp_path / "result_0.txt")) == TO_EPOCH_2
    assert check(tmp_path / "result_0.txt", "4.0.0").passed


def test_an_exception_in_lightnings_trainer_aborts_the_run(run, tmp_path):
    trainer, module, loader = lightning_trainer(run, "accuracy", fails_at=3)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module, loader, loader)
    stop = read(tmp_path / "result_0.txt").stopped
    assert stop is not None and stop.metadata["reason"] == "ZeroDivisionError: in a step"


def test_transformers_evaluations_of_other_sets_and_outside_of_training_are_passed_over(run, tmp_path):
    trainer = transformers_trainer(run, tmp_path, "eval_a_accuracy", eval_on_start=True)
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
    trainer = transformers_trainer(run, tmp_path, "eval_acuracy", num_train_epochs=epochs)
    with pytest.raises(TrainingLoopError, match="Did you mean eval_accuracy?"), run:
        trainer.train()
    assert read(tmp_path / "result_0.txt").status == keys.ABORTED
