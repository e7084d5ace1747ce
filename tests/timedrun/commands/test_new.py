"""A new benchmark runs, checks, scores and passes its preflight as it was written; names that cannot be are refused."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlevents.rounds.own_rules import BEYOND_MLPERF
from tests.conftest import Printed
from timedrun.commands.new import TEMPLATE
from timedrun.runner.process.launch_env import module_command

NAME = "written_benchmark"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> Iterator[Path]:
    """The working directory, which is not on the import path, with a new benchmark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    printed("new", "benchmark", NAME)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


@pytest.mark.processes
def test_a_new_benchmark_runs_and_is_judged_by_its_own_rules(here, printed, told):
    assert TEMPLATE.name not in "".join(file.read_text() for file in (here / NAME).glob("*.py"))
    command = module_command("timedrun", "run", NAME, "methods", "--threads", "1", "--results", "set")
    subprocess.run(command, check=True, timeout=60)
    checked = printed("check", "set/result_0.txt", "--official")
    assert "strict pass, official not applicable (MLCommons' tools do not know" in checked
    (score,) = told("score", "set", code=1)  # one run of three
    assert (score["benchmark"], score["ruleset"], score["target"], score["runs_needed"], score["demonstration"]) == (
        *(NAME, BEYOND_MLPERF, 0.97, 3),
        False,
    )
    assert score["failures"] == {} and len(score["runs"]) == 1
    (report,) = told("preflight", NAME, "methods")
    assert (report["strict"], report["runs"], report["ruleset"]) == ("pass", 3, BEYOND_MLPERF)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--precision", "bf16"], f"precision is bf16, which the training loop of {NAME} does not implement"),
        (["--global-batch", "5000"], "global batch 5000 exceeds the 4000 samples"),
        (["--total-epochs", "0"], "total_epochs 0 is below 1"),
    ],
)
def test_settings_that_the_loop_does_not_implement_or_no_run_can_have_are_refused_before_it(words, said, here, refused):
    errors = refused("run", NAME, "baseline", *words, code=1)
    assert said in errors and "Traceback" not in errors and not (here / "runs").exists()


@pytest.mark.parametrize("module", ["configs", "train"])
def test_a_race_names_the_line_of_a_module_that_is_not_python(module, here, refused):
    file = here / NAME / f"{module}.py"
    file.write_text("x = = 1\n" + file.read_text())
    said = refused("race", NAME, "baseline", "methods", "--threads", 1, code=1)
    assert f"{module}.py, line 1: invalid syntax: x = = 1" in said.splitlines()[-1]
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("def train(", "def trian(", f"{NAME}.train has no train(config, run); add it."),
        ("    run.track(", "    dict(", "call run.track(model=..., ...) before it"),
    ],
)
def test_a_loop_without_its_function_or_what_its_warm_up_restores_is_refused(old, new, reason, here, refused):
    file = here / NAME / "train.py"
    file.write_text(file.read_text().replace(old, new))
    assert reason in refused("run", NAME, "baseline", "--threads", 1, code=1)


@pytest.mark.parametrize("name", ["bert", "json", "a-b", "class", "_x", "é", "../x", NAME, "gpt", "fineweb"])
def test_a_name_that_cannot_be_is_refused(name, here, refused):
    before = sorted(here.rglob("*"))
    refused("new", "benchmark", name)
    assert sorted(here.rglob("*")) == before


def test_a_copied_benchmark_whose_configs_name_the_original_is_refused(here, refused, printed):
    copy = shutil.copytree(here / NAME, here / "copied_benchmark")
    assert f"is of benchmark='{NAME}'" in refused("show", "copied_benchmark", "methods")
    for name in [name for name in sys.modules if name.partition(".")[0] == copy.name]:
        del sys.modules[name]
    (copy / "configs.py").write_text((copy / "configs.py").read_text().replace(NAME, copy.name))
    printed("show", copy.name, "methods")
