"""Train a small network on scikit-learn's digits with methods in PyTorch Lightning's Trainer."""

import tempfile

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from timedrun.methods import EMA, BlurPool, LabelSmoothing, Stack, stack
from timedrun.methods.integrations.lightning import MethodsCallback


class Digits(pl.LightningModule):
    def __init__(self, speed: Stack) -> None:
        super().__init__()
        self.speed = speed
        self.network = speed.model(
            nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(32, 10),
            )
        )

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = self.speed.batch(batch[0], batch[1], 10)
        return F.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: list[Tensor], index: int) -> None:  # MethodsCallback puts the average in place
        right = self.network(batch[0]).argmax(1) == batch[1]
        self.log("accuracy", right.float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.network.parameters(), lr=0.01)


def main() -> None:
    pl.seed_everything(0, verbose=False)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target))
    training, validation = random_split(data, (1437, 360))
    loaders = DataLoader(training, 64, shuffle=True), DataLoader(validation, 360)

    def fit(epochs: int, checkpoint: str | None = None) -> tuple[pl.Trainer, Digits]:
        module = Digits(stack(BlurPool(), LabelSmoothing(), EMA(half_life=20, update_interval=2)))
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[MethodsCallback(module.speed)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, *loaders, ckpt_path=checkpoint)
        return trainer, module

    with tempfile.TemporaryDirectory() as folder:
        fit(5)[0].save_checkpoint(f"{folder}/half.ckpt")  # training weights and the methods' state
        trainer, module = fit(10, f"{folder}/half.ckpt")
    speed = module.speed
    print(*speed.report, sep="\n")
    accuracy = trainer.callback_metrics["accuracy"].item()
    with speed.evaluation(module):
        averaged = {name: tensor.clone() for name, tensor in module.network.state_dict().items()}
    print(f"accuracy of the averaged weights {accuracy:.4f} ({len(averaged)} tensors to keep)")


if __name__ == "__main__":
    main()
