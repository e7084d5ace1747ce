"""What the README shows runs as it stands."""

import re
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]


def test_methods_on_an_own_model_work_as_the_readme_shows_in_six_lines() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (code,) = [block for block in blocks if "stack(" in block]
    setup, used = code.split("for ", 1)
    assert len([line for line in code.splitlines() if "speed" in line or "import" in line]) <= 6
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    loader = [(torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))) for _ in range(20)]
    names = {"my_model": model, "loader": loader, "validate": lambda m: m(loader[0][0]).argmax(1), "torch": torch}
    exec(setup + "for " + used, names)
    speed = names["speed"]
    assert any("1 convolution" in line for line in speed.report)
    speed.verify()  # every method had an effect
