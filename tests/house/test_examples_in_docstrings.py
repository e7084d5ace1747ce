"""The examples in docstrings run, and everything public of the methods and of the log writer has one."""

import doctest
import importlib
import inspect
import re

import pytest
import torch

import timedrun.methods
from tests.house import structure

MODULES = [name for name in structure.product_modules() if re.match(r"timedrun\.methods|mlevents\.runlog", name)]
KNOWN = {"torch": torch, "nn": torch.nn}


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_an_example_that_prints_what_it_shows(name, tmp_path, monkeypatch):
    if ".integrations." in name:  # of libraries that may be missing
        pytest.importorskip({"hugging_face": "transformers", "lightning": "pytorch_lightning"}[name.split(".")[-1]])
    module = importlib.import_module(name)
    names = [each for each, item in vars(module).items() if getattr(item, "__module__", "") == name]
    own = [vars(module)[each] for each in names if not each.startswith("_") and each != "main"]
    assert not [item for item in own if hasattr(item, "__qualname__") and ">>>" not in (item.__doc__ or "")]

    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module, extraglobs=KNOWN if name.startswith("timedrun") else {}):
        (tmp_path / test.name).mkdir()
        monkeypatch.chdir(tmp_path / test.name)
        torch.manual_seed(0)
        runner.run(test)
    assert not runner.failures


def test_what_the_methods_export_is_of_these_modules():
    exported = [item for item in vars(timedrun.methods).values() if inspect.isclass(item) or inspect.isfunction(item)]
    assert len(exported) > 40 and all(item.__module__ in MODULES for item in exported)


def test_lines_of_examples_are_counted_apart(tmp_path):
    lines = ("def one():", '    """Return 1.', "", "    Examples:", "        >>> one()", "        1", '    """')
    (tmp_path / "module.py").write_text("\n".join(lines))
    assert structure.example_lines(tmp_path / "module.py") == 5
