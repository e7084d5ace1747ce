"""scripts/demo.sh races what it says, and names what --cifar10 lacks before anything runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The script in a folder without .venv, and a `timedrun` on the path that notes what it is told."""
    (tmp_path / "scripts").mkdir()
    for name in ("demo.sh", "setup.sh", "environment.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "bin").mkdir()
    for name, line in {"timedrun": f'echo "$@" >> {tmp_path}/told', "nproc": "echo 16", "python": "echo bf16"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(house: Path, *arguments: str) -> tuple[int, str, list[str]]:
    """Return the script's exit code, its errors, and the commands that it started."""
    variables = {"PATH": f"{house}/bin:/usr/bin:/bin", "TIMEDRUN_INSTALLED": "1"}
    command = ["bash", "scripts/demo.sh", *arguments]
    done = subprocess.run(command, cwd=house, env=variables, capture_output=True, text=True, timeout=60)
    told = house / "told"
    return done.returncode, done.stderr, told.read_text().splitlines() if told.exists() else []


PYTHON = """#!/bin/sh
echo "$@" >> told
mkdir -p .venv/bin; cp -n "$0" .venv/bin/python
case "$*" in *"import torchvision"*) exit "$FAILS";; esac
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_torchvision_that_does_not_load_is_left_out_and_said(fails, house):
    (house / "bin/python").write_text(PYTHON)
    variables = {"PATH": f"{house}/bin:/usr/bin:/bin", "PYTHON": "python", "FAILS": str(int(fails))}
    done = subprocess.run(["bash", "scripts/setup.sh"], cwd=house, env=variables, capture_output=True, text=True)
    assert ("pip --quiet uninstall --yes torchvision" in (house / "told").read_text()) is fails
    assert ("torchvision is left out" in done.stderr) is fails and done.returncode == 0


def test_the_demo_races_digits_and_the_small_bert_on_two_threads(house):
    code, _, told = run(house, "--runs", "2")
    assert code == 0
    assert told == [
        "race image_classification baseline_2022 baseline methods --threads 2 --data digits --runs 2",
        "race language_model baseline methods --threads 2 --data topics_mixed --global-batch 8 --max-samples 6400"
        " --evaluation.target=0.065 --evaluation.first=1000 --evaluation.every=200 --runs 2",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--runs", "2", "--results", "out"], "two races share no --results"),
        *((["--cifar10", *folder], "--cifar10 needs the folder of data_batch_1.bin") for folder in ([], ["nowhere"])),
    ],
)
def test_what_the_demo_cannot_do_is_said_and_nothing_runs(house, given, words):
    code, error, told = run(house, *given)
    assert code == 2 and told == [] and words in error and "nothing was run" in error


def test_cifar10_races_three_configs_on_two_threads_in_the_precision_that_the_cpu_has(house):
    (house / "batches").mkdir()
    code, _, told = run(house, "--cifar10", "batches", "--runs", "1", "--results", "out")
    three = "race image_classification baseline_2022 baseline methods --threads 2 --data cifar10"
    assert (code, told) == (0, [f"{three} --data-folder {house}/batches --precision bf16 --runs 1 --results out"])
