"""The wheel without its extra `train`: verbs that judge logs work without torch, the others say what to install."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from timedrun.cli import TRAINER

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("matplotlib", "vl-convert-python")
"""Of the extras `report` and `explorer`, which plot and explore need; neither brings torch."""


def required(names: tuple[str, ...]) -> Iterator[metadata.Distribution]:
    """Yield the distributions of `names` and all that they require, without extras."""
    waiting, seen = [Requirement(name) for name in names], set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        distribution = metadata.distribution(requirement.name)
        yield distribution
        waiting += map(Requirement, distribution.requires or [])


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The Python of a virtual environment that has timedrun's wheel and links to what it requires, nothing else."""
    folder = tmp_path_factory.mktemp("base")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, packages, "zip")  # what pip does to a wheel of Python alone, in a second less
    (installed,) = metadata.distributions(name="timedrun", path=[str(packages)])
    for distribution in required((*(text for text in installed.requires or () if "extra ==" not in text), *PAGES)):
        for top in {Path(file).parts[0] for file in distribution.files or () if not str(file).startswith("..")}:
            place = Path(str(distribution.locate_file(top)))
            if place.exists() and top not in ("__pycache__", "bin"):
                (packages / top).symlink_to(place)
    return folder / "venv" / "bin" / "python"


def run(python: Path, folder: Path, *commands: Sequence[object]) -> list[tuple[int, str, str]]:
    """Run commands in turn in one process of that environment; return their exit codes and what they printed."""
    program = (
        "import contextlib, io, json, sys\n"
        "from timedrun.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    out, err = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):\n"
        "        code = main(words)\n"
        "    print(json.dumps([code, out.getvalue(), err.getvalue()]))\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = json.dumps([list(map(str, command)) for command in commands])
    command = [str(python), "-c", program, words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_verbs_that_judge_work_without_torch(python, make_set, published_sample, tmp_path):
    slow = make_set(tmp_path / "sets" / "slow", times=(20.0, 21.0, 22.0, 23.0, 24.0))
    fast = make_set(tmp_path / "sets" / "fast", config_name="imagenet_methods")
    expected = (
        (1, "check", fast / "result_0.txt"),  # not the digest of its config
        (0, "score", slow, fast),
        (0, "compare", slow, fast),
        (0, "compare", slow, fast, "--quality", "0.5"),
        (0, "report", slow, fast, "--figure", tmp_path / "plot.png"),
        (0, "explore", tmp_path / "sets", "--out", tmp_path / "explore.html"),
        (1, "report", fast),
        (0, "report", fast, "--csv", tmp_path / "values.csv"),
        (0, "reproduce", fast),
        (1, "check", published_sample["v2.0"].parent, "--audit"),  # of two sets only, whose round has more
    )
    answers = run(python, tmp_path, *(words for _, *words in expected))
    for (code, *words), (exited, out, err) in zip(expected, answers, strict=True):
        said = [line for line in err.splitlines() if not line.startswith(f"timedrun {words[0]}: ")]  # stages
        assert exited == code and not said and out, (words, out, err)


def test_commands_are_raced_reported_and_packaged_without_torch(python, tmp_path):
    for wait in ("0.04", "0.02"):
        (tmp_path / f"{wait}.sh").write_text(f"for q in 5 7 9; do sleep {wait}; echo acc 0.$q; done\n")
    read = r"--quality 'acc (\S+)' --target 0.9"
    expected = (
        (0, "doctor"),
        (0, f"race command 'sh 0.04.sh' 'sh 0.02.sh' {read} --runs 3 --results race"),
        (0, "race command --resume race"),
        (0, f"race command 'sh {{budget}}.sh' --budgets 0.02,0.04 {read} --results sweep"),
        (2, f"tune command 'sh {{a:0.02..0.04}}.sh' 'sh {{a:0.01..0.02}}.sh' {read} --minutes 0.01"),
        (0, "compare race 'sh 0.04.sh' 'sh 0.02.sh'"),
        (0, "package race/a race/b --out package"),
        (0, "reproduce package --run --commands ."),
        (0, "score --forecast resnet --batch-size 4096"),
        (2, "run image_classification missing.json+ema"),
        (0, "show"),
        (0, "new benchmark mine"),
        (2, "run image_classification methods"),
        (2, "doctor --system"),
    )
    answers = run(python, tmp_path, *(shlex.split(line) for _, line in expected))
    for (code, line), (exited, out, err) in zip(expected, answers, strict=True):
        assert exited == code and "Traceback" not in err, (line, out, err)
        extras = {"tune": "tune", "run image_classification methods": "train", "doctor --system": "train"}
        if extra := next((extra for start, extra in extras.items() if line.startswith(start)), None):
            assert err.endswith(f"pip install 'timedrun[{extra}]'.\n"), (line, err)
        else:
            assert "torch" not in err and "tyro" not in err, (line, err)


def test_the_extra_train_is_what_the_command_names():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["train"]
    assert {Requirement(text).name for text in extra} == {*TRAINER, "safetensors"}  # which kept models alone need
