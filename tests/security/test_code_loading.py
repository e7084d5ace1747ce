"""Code is run where the user names it, and nowhere because a file of somebody else names it or lies nearby."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from judging.ground.config_values import digest_of
from judging.ground.errors import UsageError
from judging.ground.result_files import ResultPaths
from judging.scoring.recorded_run import recorded_run_of
from tests.security.hostile_logs import write_log
from timedrun.cli import main
from timedrun.evidence.submission.reproduction.repetition import repeat_config
from timedrun.runner.benchmark import find
from timedrun.runner.process.launch_env import module_command

TELLS = "import pathlib; pathlib.Path({mark!r}).touch()\n"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with a module, a package and a package in a package that each leave a mark when they
    are imported; the mark's path."""
    mark = tmp_path / "imported"
    folder = tmp_path / "path"
    for place in ("trap_module.py", "trap_package/__init__.py", "trap_package/inner/__init__.py"):
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TELLS.format(mark=str(mark)))
    monkeypatch.syspath_prepend(folder)
    return mark


@pytest.mark.parametrize(
    "name",
    [
        *("trap_module", "trap_package", "trap_package.inner", "trap_package.absent"),
        *("os.path", "antigravity", "__main__", "../x", "", "a b", "-c", "a..b"),
    ],
)
def test_what_is_no_benchmark_is_refused_in_words_and_not_even_imported(name, trap):
    with pytest.raises(UsageError, match="benchmark"):
        find(name)
    assert not trap.exists() and "antigravity" not in sys.modules


@pytest.mark.processes
def test_what_is_started_again_looks_for_packages_only_where_this_process_does(tmp_path, monkeypatch):
    mark = tmp_path / "imported"
    (tmp_path / "argparse.py").write_text(TELLS.format(mark=str(mark)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    done = subprocess.run(module_command("timedrun", "--help"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not mark.exists()
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m timedrun` has it: the user's own choice, and kept
    assert "-P" not in module_command("timedrun")


@pytest.mark.processes
def test_a_result_run_again_imports_nothing_that_its_config_names_or_beside_it(trap, tmp_path, monkeypatch, printed):
    package = tmp_path / "package"
    config = {"benchmark": "trap_package", "seed": 1}
    write_log(package / "result_0.txt", {"config_digest": digest_of(config)})
    (package / "run_0").mkdir()
    (package / "run_0" / "config.json").write_text(json.dumps(config))
    (package / "torch.py").write_text(TELLS.format(mark=str(trap)))
    monkeypatch.setenv("PYTHONPATH", str(trap.parent / "path"))
    monkeypatch.chdir(package)
    assert "is not a benchmark" in printed("reproduce", ".", "--run", "--results", tmp_path / "again", code=1)
    assert not trap.exists()


def test_so_many_ranks_as_no_machine_has_are_not_started_unasked(tmp_path):
    (tmp_path / "run_0").mkdir()
    (tmp_path / "run_0" / "config.json").write_text('{"benchmark": "image_classification"}')
    (tmp_path / "run_0" / "provenance.json").write_text('{"ranks": 1000000}')
    run, paths = recorded_run_of(tmp_path / "result_0.txt"), ResultPaths(tmp_path / "again", 0)
    why, _ = repeat_config(run, paths, tmp_path, {}, lambda ranks, threads: pytest.fail("a process was started"))
    assert "--ranks" in why


def test_a_config_from_a_file_cannot_say_where_results_are_written(tmp_path, monkeypatch, told, refused):
    shown = told("show", "image_classification", "smoke", "--data", "synthetic")
    monkeypatch.chdir(tmp_path)
    for name in ("/etc/x", "../x", "..", "-x", "", "a/b", "a\nb", "a" * 200):
        (tmp_path / "config.json").write_text(json.dumps(shown.get("config", shown) | {"name": name}))
        assert "cannot name a folder" in refused("run", "image_classification", "config.json"), name
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"], name


@pytest.mark.parametrize("text", ["[]", "1", '"x"', "null", "{", "[" * 100_000, "\xff"])
def test_what_is_no_config_is_refused_in_words(text, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    assert main(["run", "image_classification", str(path)]) in (1, 2)
    assert str(path) in capsys.readouterr().err
