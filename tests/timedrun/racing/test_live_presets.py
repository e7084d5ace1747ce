"""Presets read what the Trainers print while they train: each completed validation once, with its value."""

import contextlib
import io
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.timedrun.racing.test_presets import readings

LOSSES = [4.0, 3.0, 3.0, 2.0, 1.0, 0.5]  # a plateau among them


pytestmark = pytest.mark.usefixtures("trainers")


def read(preset: str, train: Callable[[], object]) -> list[str | float]:
    """Return the readings of what `train` prints, qualities as numbers."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        train()
    found = readings(["--preset", preset], "\n".join(filter(None, re.split(r"[\r\n]+", printed.getvalue()))))
    taken = [reading.value if reading.kind == "quality" else reading.kind for reading in found]
    return [value for at, value in enumerate(taken) if value != "start" or "start" not in taken[:at]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"val_check_interval": 0.5}, ["start", *LOSSES]),
        ({"check_val_every_n_epoch": 2}, ["start", LOSSES[0]]),
        ({"num_sanity_val_steps": 0}, ["start", *LOSSES[:3]]),
    ],
)
def test_lightnings_bar_of_tqdm(given, expected):
    lightning = pytest.importorskip("pytorch_lightning")
    losses = iter(LOSSES)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(1, 1)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.net(batch).sum()

        def validation_step(self, batch: Tensor, index: int) -> None:
            if index == 0:
                loss = 9.0 if self.trainer.sanity_checking else next(losses)
                self.log("val_loss", loss, prog_bar=True, batch_size=1)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = torch.utils.data.DataLoader(torch.ones(4, 1))
    bar = lightning.callbacks.TQDMProgressBar()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", callbacks=[bar], **quiet, **given)
    assert read("lightning", lambda: trainer.fit(Module(), loader, loader)) == expected


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("in", ["start held", "start", "quality", "quality", "reported"]),
        ("before", ["start held", "start held", "start", "quality", "quality", "reported"]),
        ("after", ["start held", "start", "reported", "quality"]),
        ("of several sets", ["start held", "start", "reported"]),
    ],
)
def test_the_bar_of_transformers(when, expected, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(1, 1), 0

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            self.calls += 1
            return {"loss": self.layer(x).sum() * 0 + self.calls, "logits": x}

    data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 4
    quiet = {"save_strategy": "no", "report_to": [], "eval_strategy": "no" if when == "after" else "epoch"}
    trainer = transformers.Trainer(
        Net(),
        transformers.TrainingArguments(str(tmp_path), num_train_epochs=2, per_device_train_batch_size=2, **quiet),
        train_dataset=data,
        eval_dataset={"a": data, "b": data} if when == "of several sets" else data,
    )

    def train() -> None:
        if when == "before":
            trainer.evaluate()
        trainer.train()
        if when == "after":
            print(trainer.evaluate())

    assert ["quality" if isinstance(value, float) else value for value in read("transformers", train)] == expected
