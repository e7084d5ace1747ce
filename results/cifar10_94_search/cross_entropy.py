"""Print the accuracy of runs that kept their model, and its cross-entropy at the best temperature, over six views of
each of the 5,000 held-out images: `cross_entropy.py DATA_FOLDER MODEL_FOLDER...`."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from image_classification import cifar10
from image_classification.configs import cifar10_94_methods
from timedrun.methods.tta import mean_over_views
from timedrun.runner.run.kept_model import load_model

images, labels = (part[-cifar10.TUNING :] for part in cifar10.read(Path(sys.argv[1]), "train"))
mean, std = (
    torch.tensor(values).view(1, 3, 1, 1) for values in (cifar10_94_methods().data.mean, cifar10_94_methods().data.std)
)
images = ((images / 255 - mean) / std).to(memory_format=torch.channels_last)
for folder in sys.argv[2:]:
    model = load_model(folder).to(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = torch.cat([mean_over_views(model, part).float() for part in images.split(1000)])
    loss = min(F.cross_entropy(logits * times / 10, labels).item() for times in range(5, 60))
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    print(f"{folder}: accuracy {accuracy:.2%}, cross-entropy {loss:.4f}")
