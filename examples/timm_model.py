"""Train timm models from scratch on scikit-learn's digits, and see which methods fit which model."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from timedrun.methods import EMA, BlurPool, ChannelsLast, LogBias, ProgressiveResizing, Stack, stack
from timedrun.methods.integrations import fitting_torchvision

with fitting_torchvision():
    import timm
    from timm.loss import BinaryCrossEntropy

EPOCHS, BATCH, CLASSES = 6, 64, 10


def data() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    return F.interpolate(images, size=32, mode="bilinear"), torch.tensor(digits.target)


def train(model: nn.Module, speed: Stack, images: Tensor, labels: Tensor) -> float:
    """Train on all but the last 360 samples; return the accuracy of the averaged weights on those."""
    model = speed.model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss = BinaryCrossEntropy(smoothing=0.0)
    per_epoch = (len(images) - 360) // BATCH
    for step in range(EPOCHS * per_epoch):
        if step % per_epoch == 0:
            order = torch.randperm(len(images) - 360)
        chosen = order[step % per_epoch * BATCH :][:BATCH]
        speed.before_step(model, step, step / (EPOCHS * per_epoch))
        inputs, targets = speed.batch(images[chosen], labels[chosen], CLASSES)
        loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        speed.after_step(model)
    speed.verify()
    model.eval()
    with speed.evaluation(model), torch.no_grad():
        return (model(images[-360:]).argmax(1) == labels[-360:]).float().mean().item()


def main() -> dict[str, float]:
    torch.manual_seed(0)
    images, labels = data()
    settings = {"pretrained": False, "in_chans": 1, "num_classes": CLASSES}
    resnet = timm.create_model("test_resnet", **settings)
    resnet_speed = stack(
        ChannelsLast(), BlurPool(), ProgressiveResizing(delay=0.2), LogBias(), EMA(half_life=15, update_interval=3)
    )
    vit = timm.create_model("test_vit", img_size=32, dynamic_img_size=True, **settings)  # for ProgressiveResizing
    vit_speed = stack(ProgressiveResizing(delay=0.2, increment=16), LogBias(), EMA(half_life=15, update_interval=3))
    accuracies = {}
    for name, model, speed in (("test_resnet", resnet, resnet_speed), ("test_vit", vit, vit_speed)):
        accuracies[name] = train(model, speed, images, labels)
        print(name, *speed.report, f"accuracy of the averaged weights {accuracies[name]:.4f}", sep="\n    ")
    try:
        stack(ProgressiveResizing()).model(
            timm.create_model("test_vit", img_size=32, dynamic_img_size=False, **settings)
        )
    except ValueError as error:
        print(f"test_vit of one size: {error}")
    return accuracies


if __name__ == "__main__":
    main()
