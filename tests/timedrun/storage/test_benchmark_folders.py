"""Benchmarks in the working directory and behind entry points are found; what cannot be read does not stop `list`."""

import sys
from importlib.metadata import EntryPoint

import pytest

from judging.ground.errors import UsageError
from timedrun.benchmark import find
from timedrun.storage import benchmark_folders
from timedrun.storage.benchmark_folders import nearby


def test_a_benchmark_in_the_working_directory_is_found_if_the_user_names_it(make_benchmark):
    folder = make_benchmark("here_benchmark")
    assert nearby()["here_benchmark"] == folder
    with pytest.raises(UsageError, match=f"set PYTHONPATH={folder.parent}"):
        find("here_benchmark")  # named by a file
    assert not (folder / "imported").exists() and str(folder.parent) not in sys.path
    benchmark = find("here_benchmark", working_directory=True)
    assert (benchmark.spec.rules.target, benchmark.spec.unit, benchmark.spec.supports) == (1.5, "samples", frozenset())
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


def test_a_benchmark_whose_import_fails_is_refused_with_the_reason(make_benchmark):
    make_benchmark("taken_benchmark", rules="resnet")
    with pytest.raises(UsageError, match="cannot be imported .ValueError: the benchmark resnet is defined by ruleset"):
        find("taken_benchmark", working_directory=True)


def test_a_foreign_folder_of_a_shipped_name_hides_nothing(make_benchmark, monkeypatch, printed):
    folder = make_benchmark("image_classification", init="raise RuntimeError('foreign')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "image_classification"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder.parent)  # as `python -m timedrun` has it
    assert find("image_classification", working_directory=True).spec.mlperf_benchmark == "resnet"
    assert "digits_baseline" in printed("show")


def test_a_benchmark_is_found_behind_an_entry_point(make_benchmark, monkeypatch):
    inner = make_benchmark("outer_package/inner")
    (inner.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(inner.parents[1])
    entry = EntryPoint("short_name", "outer_package.inner", "timedrun.benchmarks")
    monkeypatch.setattr(benchmark_folders, "entry_points", lambda group: [entry])
    assert nearby()["outer_package.inner"] == inner
    assert not (inner / "imported").exists()
    assert find("short_name").name == "outer_package.inner"
