"""Benchmarks of the tree satisfy the protocols; they and their configs are found by name, also nested and in the
working directory, without torch; what cannot be read does not stop `list`."""

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import ExitCode, UsageError
from timedrun.cli import main
from timedrun.runner import benchmark_modules
from timedrun.runner.benchmark import find, nearby
from timedrun.runner.config import RunConfig

MODULES = {
    "train": benchmark_modules.TrainModule,
    "run_info": benchmark_modules.RunInfoModule,
    "datasets": benchmark_modules.DatasetsModule,
    "export": benchmark_modules.ExportModule,
}
REQUIRED = {"train", "plan", "preflight", "data_digest"}


@pytest.mark.parametrize("name", nearby())
def test_each_benchmark_has_the_functions_of_the_protocols_and_each_config_its_own_name(name):
    benchmark = find(name)
    for module, hook in [(module, hook) for module, of in MODULES.items() for hook in vars(of).values()]:
        if not inspect.isfunction(hook) or hook.__name__.startswith("_"):
            continue
        function = benchmark.hook(module, hook.__name__)
        if function is None:
            assert hook.__name__ not in REQUIRED, f"{name}.{module}.{hook.__name__}"
            continue
        wanted = [parameter for parameter in inspect.signature(hook).parameters if parameter != "self"]
        assert list(inspect.signature(function).parameters) == wanted, f"{name}.{module}.{hook.__name__}"
    if prepare := benchmark.hook("prepare", "prepare"):
        parameters = inspect.signature(prepare).parameters
        assert list(parameters)[:2] == ["config", "folder"]
        assert {"decode", "workers"} <= parameters.keys()
    for config_name, docstring in benchmark.config_names.items():
        config = benchmark.config(config_name)
        assert isinstance(config, RunConfig)
        assert (config.name, bool(docstring)) == (config_name, True)


def test_a_nested_benchmark_is_found_by_its_last_component_and_refuses_configs_of_others(make_benchmark, monkeypatch):
    monkeypatch.syspath_prepend(make_benchmark("outer_benchmark").parent)
    make_benchmark("outer_benchmark/inner_benchmark")
    nested = "outer_benchmark.inner_benchmark"
    assert nested in nearby()
    assert find("inner_benchmark").name == find(nested).name == nested
    assert find(nested).config_names == {"toy_baseline": "A toy."}
    with pytest.raises(UsageError, match="no config 'basline'. Did you mean toy_baseline"):
        find(nested).config("basline")
    values: dict[str, Any] = {"benchmark": "outer_benchmark", "name": "x"}
    find("outer_benchmark").require_own(values, Path("x.json"))
    find(nested).require_own(values, Path("x.json"))  # written before the nested benchmark was one of its own
    with pytest.raises(UsageError, match="x.json is a config of benchmark 'outer_benchmark', not of image_classific"):
        find("image_classification").require_own(values, Path("x.json"))


@pytest.mark.parametrize("working_directory", [False, True])
def test_what_is_unknown_or_fails_says_why_and_where_ones_own_is_looked_for(
    working_directory, make_benchmark, monkeypatch
):
    (make_benchmark("latin") / "__init__.py").write_bytes("# é\nSPEC = None\n".encode("latin-1"))
    with pytest.raises(UsageError, match="no benchmark package 'zzz_unknown'.*set PYTHONPATH to the folder") as caught:
        find("zzz_unknown", working_directory=working_directory)
    assert ("run this in the folder" in str(caught.value)) is working_directory
    monkeypatch.syspath_prepend(make_benchmark("specless", init="").parent)
    with pytest.raises(UsageError, match="defines no SPEC"):
        find("specless")
    make_benchmark("taken_benchmark", rules="resnet")
    with pytest.raises(UsageError, match="cannot be imported .ValueError: the benchmark resnet is defined by ruleset"):
        find("taken_benchmark", working_directory=working_directory)


def test_an_error_in_a_benchmarks_code_names_its_place_and_shows_only_that_code(make_benchmark, monkeypatch, capfd):
    folder = make_benchmark("raising_benchmark", configs="def toy_bad():\n    raise ValueError('of the author')\n")
    monkeypatch.syspath_prepend(folder.parent)
    assert main(["show", "raising_benchmark", "bad"]) == ExitCode.ERROR
    said = capfd.readouterr().err
    assert "timedrun show: raising_benchmark/configs.py, line 2 raised ValueError: of the author" in said
    assert "cli.py" not in said and "raise ValueError('of the author')" in said


def test_a_benchmark_in_the_working_directory_is_found_if_the_user_names_it(make_benchmark):
    folder = make_benchmark("here_benchmark")
    assert nearby()["here_benchmark"] == folder
    with pytest.raises(UsageError, match=f"set PYTHONPATH={folder.parent}"):
        find("here_benchmark")  # named by a file
    assert not (folder / "imported").exists() and str(folder.parent) not in sys.path
    benchmark = find("here_benchmark", working_directory=True)
    rules = benchmark.spec.rules
    assert (rules.target, rules.unit, benchmark.spec.supports) == (1.5, "samples", frozenset())
    assert sys.path[-1] == str(folder.parent)


def test_list_imports_nothing_and_skips_what_it_cannot_read(make_benchmark, answered):
    folder = make_benchmark("here_benchmark_2")
    make_benchmark("broken_benchmark", configs="def (")
    make_benchmark("bare_benchmark", init="# SPEC\n")
    shown, skipped = answered("show", code=0)
    assert "here_benchmark_2: Toy task (ruleset beyond_mlperf)" in shown and "toy_baseline" in shown
    assert "digits_baseline" in shown
    assert "skipped broken_benchmark in" in skipped and "bare_benchmark in" in skipped
    assert len(skipped.splitlines()) == 2
    assert not (folder / "imported").exists()
