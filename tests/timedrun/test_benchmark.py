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

HOOKS = [
    ("train", benchmark_modules.TrainModule.train),
    ("run_info", benchmark_modules.RunInfoModule.plan),
    ("datasets", benchmark_modules.DatasetsModule.preflight),
    ("datasets", benchmark_modules.DatasetsModule.data_digest),
    ("datasets", benchmark_modules.HardwareModule.unavailable),
    ("datasets", benchmark_modules.TokensModule.tokens_per_sample),
    ("warm_up", benchmark_modules.WarmUpModule.build_step),
]
REQUIRED = {"train", "plan", "preflight", "data_digest"}
SPEC = (
    "from timedrun.benchmark import BenchmarkSpec\nSPEC = BenchmarkSpec(title='t', mlperf_benchmark='resnet',"
    " ruleset='2.0.0', default_data='toy')\n"
)


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
def nested(make_package: Callable[[str, str], str], tmp_path: Path) -> str:
    """A benchmark `outer_benchmark` with a benchmark `inner_benchmark` in it."""
    make_package("outer_benchmark", SPEC)
    inner = tmp_path / "outer_benchmark" / "inner_benchmark"
    inner.mkdir()
    (inner / "__init__.py").write_text(SPEC)
    for folder in (inner.parent, inner):
        (folder / "train.py").touch()
        (folder / "configs.py").write_text("def toy_flat():\n    '''Flat.'''\ndef _hidden(): pass\n")
    return "outer_benchmark.inner_benchmark"


def test_a_nested_benchmark_is_found_by_its_last_component_and_its_configs_by_name(nested):
    assert nested in nearby()
    assert find("inner_benchmark").name == find(nested).name == nested
    assert find(nested).config_names == {"toy_flat": "Flat."}
    with pytest.raises(UsageError, match="no config 'flut'. Did you mean toy_flat"):
        find(nested).config("flut")


def test_a_config_of_another_benchmark_is_refused(nested):
    values: dict[str, Any] = {"benchmark": "outer_benchmark", "name": "x"}
    find("outer_benchmark").require_own(values, Path("x.json"))
    find(nested).require_own(values, Path("x.json"))  # written before the nested benchmark was one of its own
    with pytest.raises(UsageError, match="x.json is a config of benchmark 'outer_benchmark', not of image_classific"):
        find("image_classification").require_own(values, Path("x.json"))


@pytest.mark.parametrize("working_directory", [False, True])
def test_a_name_of_nothing_known_says_where_ones_own_is_looked_for(working_directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="set PYTHONPATH to the folder that holds it") as caught:
        find("zzz_unknown", working_directory=working_directory)
    assert ("run this in the folder" in str(caught.value)) is working_directory
    (tmp_path / "latin").mkdir()
    for name in ("configs.py", "train.py"):
        (tmp_path / "latin" / name).touch()
    (tmp_path / "latin" / "__init__.py").write_bytes("# é\nSPEC = None\n".encode("latin-1"))
    with pytest.raises(UsageError, match="no benchmark package 'zzz_unknown'"):
        find("zzz_unknown", working_directory=working_directory)
    (tmp_path / "zzz_unknown").mkdir()
    (tmp_path / "zzz_unknown" / "configs.py").touch()
    with pytest.raises(UsageError, match="does not define SPEC"):
        find("zzz_unknown")
    (tmp_path / "specless").mkdir()
    (tmp_path / "specless" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="defines no SPEC"):
        find("specless")


def test_an_error_in_a_benchmarks_code_names_its_place_and_shows_only_that_code(make_package, tmp_path, capfd):
    make_package("raising_benchmark", SPEC)
    code = "def toy_bad():\n    raise ValueError('of the author')\n"
    (tmp_path / "raising_benchmark" / "configs.py").write_text(code)
    (tmp_path / "raising_benchmark" / "train.py").touch()
    assert main(["show", "raising_benchmark", "bad"]) == ExitCode.ERROR
    said = capfd.readouterr().err
    assert "timedrun show: raising_benchmark/configs.py, line 2 raised ValueError: of the author" in said
    assert "cli.py" not in said and "raise ValueError('of the author')" in said
