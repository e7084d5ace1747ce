"""The folder `logging/` never hides Python's own module, and imports between packages go down only."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.house import rooms, structure
from timedrun.commands.parser import VERBS

ROOT = Path(__file__).resolve().parents[2]
PROBE = "import logging; logging.getLogger('x').handlers; import mlevents, timedrun; print(logging.__file__)"
STANDARD = os.path.dirname(os.__file__)
BENCHMARKS = {"image_classification", "image_segmentation", "language_model"}


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'logging'}"}])
def test_pythons_logging_is_pythons_own_however_python_starts(variables):
    probe = [sys.executable, "-c", PROBE]
    assert subprocess.check_output(probe, cwd=ROOT, env=os.environ | variables, text=True).startswith(STANDARD)


def test_the_logging_folder_is_no_package():
    assert not (ROOT / "logging" / "__init__.py").exists()


def test_no_package_in_it_has_a_standard_library_name():
    names = {path.stem for path in (ROOT / "logging").iterdir()}
    assert not names & sys.stdlib_module_names


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("mlevents", {"torch", "judging", "referee", "timedrun", *BENCHMARKS}),
        ("judging", {"torch", "referee", "timedrun", *BENCHMARKS}),
        ("referee", {"timedrun", *BENCHMARKS}),
        ("timedrun", BENCHMARKS),
        *((benchmark, BENCHMARKS - {benchmark}) for benchmark in sorted(BENCHMARKS)),
    ],
)
def test_imports_go_down_only(package, forbidden):
    for module, imported in structure.all_imports().items():
        if module.split(".")[0] == package:
            assert not {name.split(".")[0] for name in imported} & forbidden, module


def test_no_imports_go_in_a_circle():
    circle: list[str] = []
    try:
        TopologicalSorter(structure.imports()).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("timedrun.config", "timedrun.runner.config"),
        ("timedrun.run.timed_run", "timedrun.runner.run.timed_run"),
        ("timedrun.run.progress", "timedrun.runner.process.progress"),
        ("timedrun.preflight.plan", "timedrun.runner.plan"),
        ("timedrun.race.report", "timedrun.racing.report"),
    ],
)
def test_a_module_that_has_moved_is_imported_by_its_old_name_with_a_warning(old, new):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved to {new}; change the import"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new) and module.__spec__.name == new
    with pytest.raises(ModuleNotFoundError, match=r"timedrun\.runner\.run\.gone"):
        importlib.import_module("timedrun.run.gone")


def test_a_race_of_commands_passes_few_rooms_and_returns_to_none():
    passed, returns = rooms.flow(rooms.PATHS["race of commands"])
    assert len(passed) <= 8 and returns == [], passed


def test_the_top_of_timedrun_has_few_modules():
    top = [path.name for path in (ROOT / "timedrun").glob("*.py") if path.name != "__init__.py"]
    assert len(top) <= 2, top


def test_the_modules_that_scripts_start_exist():
    started = re.compile(r"python3? -m ([\w.]+)")
    files = [path for path in (*(ROOT / "scripts").iterdir(), ROOT / "Dockerfile") if path.is_file()]
    modules = {name for path in files for name in started.findall(path.read_text())}
    assert "timedrun.methods.training.number_formats" in modules
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


def test_scripts_are_short_and_stop_at_the_first_error():
    for path in (ROOT / "scripts").glob("*.sh"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 15, path
        assert "set -euo pipefail" in lines, path


def test_a_verb_is_at_most_80_lines_imports_no_other_and_hands_on_no_namespace():
    verbs = {verb for group in VERBS.values() for verb in group}
    for verb in verbs:
        text = (ROOT / f"timedrun/commands/{verb}.py").read_text()
        assert len(text.splitlines()) <= 80, verb
        assert not {*re.findall(r"from timedrun\.commands\.(\w+) import", text)} & verbs, verb
    holds = [path for path in (ROOT / "timedrun").rglob("*.py") if "Namespace" in path.read_text()]
    assert [path for path in holds if path.parent.name != "commands" and path.name != "cli.py"] == []
