"""The source of a command is what it names and what that imports, and no data."""

import shlex
from pathlib import Path

import pytest

from timedrun.racing.command_source import LARGEST, source_of

FILES = {
    "train.py": "import model, torch\nfrom lib.optimizer import Muon",
    "model.py": "def late():\n    import layers",
    "layers.py": "",
    "lib/optimizer.py": "from . import schedule\nfrom .. import outside",
    "lib/schedule.py": "not Python (",
    "unused.py": "",
    "run.sh": "cd . && torchrun --nproc_per_node=8 train.py --config=conf/a.yaml",
    "conf/a.yaml": "unused.py",
    "package/__init__.py": "",
    "package/__main__.py": "from package import model",
    "package/model.py": "",
    "go": "#!/bin/sh\npython train.py",
    ".env": "PASSWORD=1",
    "data.bin": "data",
}
TRAIN = {"train.py", "model.py", "layers.py", "lib/optimizer.py", "lib/schedule.py"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_text(text)
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("FAST=1 python ./train.py --data data.bin --seed {seed}", TRAIN),
        ("bash run.sh", {*TRAIN, "run.sh", "conf/a.yaml"}),
        (". .env; python -m package", {"package/__init__.py", "package/__main__.py", "package/model.py"}),
        ("torchrun -m package.model", {"package/__init__.py", "package/model.py"}),
        ("./go", {*TRAIN, "go"}),
        ("python -c 'print(1)'", set()),
        (f"python train.py {'a' * 300}", TRAIN),
    ],
)
def test_what_a_command_names_and_what_that_imports_is_its_source(command, names, here):
    assert source_of(command, here) == {name: FILES[name].encode() for name in sorted(names)}


def test_a_script_elsewhere_has_a_folder_of_its_own_and_large_files_are_data(here):
    (here / "below").mkdir()
    command = f"python ../train.py; sh {shlex.quote(str(here / 'run.sh'))}"
    found = source_of(command, here / "below")
    assert {*found} == {f"elsewhere_1/{name}" for name in {*TRAIN, "run.sh"}}
    (here / "layers.py").write_text("#" * (LARGEST + 1))
    assert "layers.py" not in source_of("python train.py", here)
