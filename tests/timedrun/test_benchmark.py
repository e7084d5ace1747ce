"""Benchmarks of the tree satisfy the protocols; configs and nested benchmarks are found by name, without torch."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import ExitCode, UsageError
from timedrun import benchmark_modules
from timedrun.benchmark import find, nearby
from timedrun.cli import main
from timedrun.config import RunConfig

MODULES = {
    "train": benchmark_modules.TrainModule,
    "run_info": benchmark_modules.RunInfoModule,
    "datasets": benchmark_modules.DatasetsModule,
    "warm_up": benchmark_modules.WarmUpModule,
}
HOOKS = [
    (module, function)
    for module, protocol in MODULES.items()
    for name, function in vars(protocol).items()
    if not name.startswith("_")
]
REQUIRED = {"train", "plan", "preflight", "data_digest"}


@pytest.mark.parametrize("name", nearby())
def test_each_benchmark_has_the_functions_of_the_protocols(name):
    benchmark = find(name)
    for module, hook in HOOKS:
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


@pytest.mark.parametrize("name", nearby())
def test_config_names_are_those_of_the_functions_and_each_config_has_its_own(name):
    benchmark = find(name)
    for config_name, docstring in benchmark.config_names.items():
        config = benchmark.config(config_name)
        assert isinstance(config, RunConfig)
        assert (config.name, bool(docstring)) == (config_name, True)


@pytest.fixture
def nested(make_benchmark: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """A benchmark `outer_benchmark` with a benchmark `inner_benchmark` in it."""
    monkeypatch.syspath_prepend(make_benchmark("outer_benchmark").parent)
    make_benchmark("outer_benchmark/inner_benchmark")
    return "outer_benchmark.inner_benchmark"


def test_a_nested_benchmark_is_found_by_its_last_component_and_its_configs_by_name(nested):
    assert nested in nearby()
    assert find("inner_benchmark").name == find(nested).name == nested
    assert find(nested).config_names == {"toy_baseline": "A toy."}
    with pytest.raises(UsageError, match="no config 'basline'. Did you mean toy_baseline"):
        find(nested).config("basline")


def test_a_config_of_another_benchmark_is_refused(nested):
    values: dict[str, Any] = {"benchmark": "outer_benchmark", "name": "x"}
    find("outer_benchmark").require_own(values, Path("x.json"))
    find(nested).require_own(values, Path("x.json"))  # written before the nested benchmark was one of its own
    with pytest.raises(UsageError, match="x.json is a config of benchmark 'outer_benchmark', not of image_classific"):
        find("image_classification").require_own(values, Path("x.json"))


@pytest.mark.parametrize("working_directory", [False, True])
def test_a_name_of_nothing_known_says_where_ones_own_is_looked_for(working_directory, make_benchmark, monkeypatch):
    make_benchmark("latin")
    Path("latin/__init__.py").write_bytes("# é\nSPEC = None\n".encode("latin-1"))
    with pytest.raises(UsageError, match="no benchmark package 'zzz_unknown'.*set PYTHONPATH to the folder") as caught:
        find("zzz_unknown", working_directory=working_directory)
    assert ("run this in the folder" in str(caught.value)) is working_directory
    make_benchmark("zzz_unknown", init="")
    with pytest.raises(UsageError, match="does not define SPEC"):
        find("zzz_unknown")
    make_benchmark("specless", init="")
    monkeypatch.syspath_prepend(Path.cwd())
    with pytest.raises(UsageError, match="defines no SPEC"):
        find("specless")


def test_an_error_in_a_benchmarks_code_names_its_place_and_shows_only_that_code(make_benchmark, monkeypatch, capfd):
    folder = make_benchmark("raising_benchmark", configs="def toy_bad():\n    raise ValueError('of the author')\n")
    monkeypatch.syspath_prepend(folder.parent)
    assert main(["show", "raising_benchmark", "bad"]) == ExitCode.ERROR
    said = capfd.readouterr().err
    assert "timedrun show: raising_benchmark/configs.py, line 2 raised ValueError: of the author" in said
    assert "cli.py" not in said and "raise ValueError('of the author')" in said
