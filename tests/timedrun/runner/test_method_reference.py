"""Methods that timedrun does not ship: named by the user from anywhere, by a file only as recorded and installed."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import UsageError
from timedrun.evidence.config_sides import ablation, sides_of
from timedrun.runner import method_reference as reference
from timedrun.runner.benchmark import find
from timedrun.runner.config import RunConfig, digest, dump, load
from timedrun.runner.config_choice import config_of
from timedrun.runner.storage import method_sources

SOURCE = '''
import pathlib

from timedrun.methods import EMA, Method

pathlib.Path("imported").touch()


class Halved(Method):
    """Halve the weights."""

    rate: float = 0.5

    def model(self, model):
        for weight in model.parameters():
            weight.data.mul_(self.rate)
        return model, "halved"


class Alike(Method, name="ema"):
    pass


class Slower(EMA):
    pass


class Noted(EMA):
    note: str = ""


class NoMethod(dict):
    pass
'''
OWN = "own_module_of_test:Halved"
HELPED = "from own_module_of_test_help import RATE\nimport json, torch, timedrun.methods\n" + SOURCE.replace(
    "0.5", "RATE"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, which is not on the import path, with a module of methods."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.setattr(reference, "_known", {})
    monkeypatch.setattr(method_sources, "_named", {})
    (tmp_path / "own_module_of_test.py").write_text(SOURCE)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("own_module_of_test", "own_benchmark_of_test")):
            del sys.modules[name]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be another process, which was told nothing."""
    for name in [name for name in sys.modules if name.startswith("own_module_of_test")]:
        del sys.modules[name]
    reference._known.clear()
    method_sources._named.clear()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(Path.cwd())])
    importlib.invalidate_caches()
    Path("imported").unlink(missing_ok=True)


def named(text: str, *overrides: str) -> RunConfig:
    return config_of(find("image_classification"), text, None, overrides)


def last(config: RunConfig) -> dict[str, Any]:
    entry: dict[str, Any] = dump(config)["methods"][-1]
    return entry


def test_a_method_is_added_changed_and_left_out_by_its_module_and_class(here):
    config = named(f"baseline+{OWN}(rate=0.1)")
    assert last(config) == {"method": OWN, "source_sha256": last(config)["source_sha256"], "rate": 0.1}
    assert config.methods[-1].name == OWN
    assert last(named(f"baseline+{OWN}", f"--methods.{OWN}.rate", "0.2"))["rate"] == 0.2
    assert last(named(f"baseline+{OWN}+ema"))["method"] == OWN  # after those of timedrun
    assert digest(named(f"baseline+{OWN}-{OWN}")) == digest(named("baseline"))
    assert last(named("baseline+own_module_of_test:Noted(note='a+b:c')"))["note"] == "a+b:c"
    assert all(method_sources.own_methods(values) == {} for values in ([], "text", None, {"methods": [[]]}))
    (full,) = sides_of(find("image_classification"), [f"baseline+{OWN}+ema"], None, [])
    sides, _ = ablation([full])  # in folders that can be named
    assert f"{full.config.name}-own_module_of_test.Halved" in [side.config.name for side in sides]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def (\n", "SyntaxError"),  # the module's first line
        ("1 / 0\n", "ZeroDivisionError"),
        ("+own_module_of_test:Halvd", "own_module_of_test.py defines no class Halvd"),
        ("+own_module_of_test:NoMethod", "is not a timedrun.methods.Method"),
        ("+own_module_of_test:Alike", "calls itself 'ema', as a method of timedrun"),
        ("+own_modul_of_test:Halved", "no source of 'own_modul_of_test' is on the import path"),
        ("+own_module_of_test:Halved.x", "cannot read the changes"),
        ("+own_module_of_test:Halved(rat=1)", "has no field 'rat'. Did you mean rate?"),
        ("-own_module_of_test:Halved", "has no method"),
        ("+os:PathLike", "no source of 'os' is on the import path"),
        ("+timedrun.methods.ema:EMA", "is timedrun's own method; write 'ema'"),
    ],
)
def test_what_is_no_method_is_refused_in_words(text, words, here):
    if text.endswith("\n"):
        (here / "own_module_of_test.py").write_text(text + SOURCE)
        text = f"+{OWN}"
    with pytest.raises(UsageError, match=re.escape(words)):
        named(f"baseline{text}")


def test_a_file_gets_the_source_that_it_was_written_with_from_the_working_directory_if_the_user_names_it(
    here, monkeypatch
):
    config = named(f"baseline+{OWN}(rate=0.1)")
    (here / "my.json").write_text(json.dumps(dump(config)))
    forget(monkeypatch)
    with pytest.raises(UsageError, match="is in the working directory, from which a file imports nothing"):
        named("my.json")
    assert not (here / "imported").exists()
    forget(monkeypatch)
    assert dump(named(f"my.json+{OWN}")) == dump(config)
    forget(monkeypatch)
    monkeypatch.syspath_prepend(here)
    assert dump(named("my.json")) == (values := dump(config))
    (here / "own_module_of_test.py").write_text(SOURCE + "\n# edited\n")
    assert dump(config) == values  # of this process, which imported it before
    forget(monkeypatch)
    monkeypatch.syspath_prepend(here)
    with pytest.raises(UsageError, match="is not the source with which .* was recorded"):
        load(type(config), values)
    assert not (here / "imported").exists()
    edited = named(f"baseline+{OWN}(rate=0.1)")
    assert digest(edited) != digest(config) and edited.name != config.name  # a set of its own
    del values["methods"][-1]["source_sha256"]
    assert load(type(config), values).methods == edited.methods


def test_modules_of_its_folder_that_a_method_imports_belong_to_its_digest(here, monkeypatch):
    (here / "own_module_of_test.py").write_text(HELPED)
    (here / "own_module_of_test_help.py").write_text("from own_module_of_test_more import *\n")
    (here / "own_module_of_test_more.py").write_text("def rate():\n    import own_module_of_test_late\n\nRATE = 0.25")
    (here / "own_module_of_test_late.py").write_text("import own_module_of_test_help  # again")
    (here / "own_module_of_test_other.py").write_text("RATE = 1")
    config = named(f"baseline+{OWN}")
    assert vars(config.methods[-1])["rate"] == 0.25
    values = dump(config)
    for name in ("help", "late", "more"):
        file = here / f"own_module_of_test_{name}.py"
        source = file.read_text()
        file.write_text(source + "\n")
        forget(monkeypatch)
        method_sources.name_by_user(OWN)
        with pytest.raises(UsageError, match="is not the source with which .* was recorded"):
            load(type(config), values)
        assert digest(named(f"baseline+{OWN}")) != digest(config)
        file.write_text(source)
    forget(monkeypatch)
    assert dump(named(f"baseline+{OWN}")) == values


def test_relative_imports_in_a_package_count(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    (package := here / "own_module_of_test_of/deep").mkdir(parents=True)
    for place in (here / "own_module_of_test_of/base.py", package / "__init__.py", package / "near.py"):
        place.write_text("")
    part, top = "own_module_of_test_of.deep.part", "own_module_of_test_of"
    (package / "part.py").write_text("from ..base import x\nfrom . import near\nimport own_module_of_test")
    counted = {part, f"{top}.base", f"{top}.deep", f"{top}.deep.near", "own_module_of_test"}
    assert {*method_sources.source_files(part, package / "part.py")} == counted


CARDED = '''
import dataclasses

from own_module_of_test_help import Base
from timedrun.methods import Hooks, Stage


class _Counting(Hooks):
    saved = ("steps",)

    def gradients(self, model, at):
        pass


class Halved(Base, stage=Stage.STEP, hooks=_Counting):
    """Halve the gradients.

    Twice.
    """

    clashes = {"sam": "both halve"}
    rate: float = 0.5
    names: tuple = dataclasses.field(default_factory=lambda: ("a",))
    kind: str

    def model(self, model):
        return model, ""
'''


def test_show_prints_what_the_class_of_an_own_method_says(here, told, refused):
    (here / "own_module_of_test.py").write_text(CARDED)
    helper = here / "own_module_of_test_help.py"
    helper.write_text("from timedrun.methods import Method\n\nclass Base(Method):\n    steps: int = 3\n")
    shown = told("show", "method", OWN)
    assert shown.pop("source") == f"{here}/own_module_of_test.py (with own_module_of_test_help.py)"
    files = {"own_module_of_test": here / "own_module_of_test.py", helper.stem: helper}
    assert shown.pop("sha256") == method_sources.digest_of(files)
    assert shown == {
        "method": OWN,
        "title": "Halve the gradients.",
        "summary": "Twice.",
        "stage": "step",
        "places": "model, gradients",
        "settings": 'steps=3, rate=0.5, names="...", kind (required)',
        "clashes": "sam: both halve",
    }
    assert "defines no class Gone" in refused("show", "method", "own_module_of_test:Gone")


def test_a_method_written_by_new_is_raced_packaged_and_run_again_only_if_its_copy_is_named(
    here, monkeypatch, printed, refused
):
    said = printed("new", "method", "own_module_of_test_new")
    assert "baseline+own_module_of_test_new:OwnModuleOfTestNew" in said
    assert said.startswith("Wrote own_module_of_test_new.py")
    refused("new", "method", "own_module_of_test_new")
    own = "own_module_of_test_new:OwnModuleOfTestNew"
    source, helper = here / "own_module_of_test_new.py", here / "own_module_of_test_help.py"
    assert "emplate" not in source.read_text()
    source.write_text(source.read_text().replace("import torch\n", "import torch\nimport own_module_of_test_help\n", 1))
    helper.touch()
    smoke = ("image_classification", f"smoke+{own}", "--data", "synthetic", "--threads", "1")
    printed("run", *smoke, "--results", "set")
    provenance = json.loads((here / "set/run_0/provenance.json").read_text())
    assert provenance["methods"] == {own: method_sources.digest_of({source.stem: source, helper.stem: helper})}
    assert f'"value": "{own}"' in (here / "set/result_0.txt").read_text()

    text = source.read_text()
    source.write_text(text + "# edited\n")
    assert "was changed after the runs" in refused("package", "set", "--out", "edited", code=1)
    source.write_text(text)
    assert "requires exactly 5" in printed("package", "set", "--out", "package", code=1)  # and else nothing
    copied, copy = sorted((here / "package").rglob("own_methods/*.py"))
    assert (copied.name, copy.read_text()) == (helper.name, text)

    forget(monkeypatch)
    sys.modules.pop("own_module_of_test_new", None)
    again = ["reproduce", "package", "--run", "--runs", "1", "--threads", "1", "--results"]
    assert f"set PYTHONPATH={copy.parent.relative_to(here)}" in printed(*again, "first", code=1)
    source.unlink()
    helper.unlink()
    monkeypatch.setenv("PYTHONPATH", str(copy.parent), prepend=":")
    monkeypatch.syspath_prepend(copy.parent)
    printed(*again, "second")
    copied.write_text("# edited")
    changed = "(with own_module_of_test_help.py) is not the source with which"
    assert changed in printed(*again, "third", code=1)


def test_show_lists_methods_and_prints_the_card_of_one_or_the_nearest_name(told, printed, refused):
    listed = {row["method"]: row["stage"] for row in told("show", "methods")}
    assert listed["blurpool"] == "model" and listed["bf16"] == "setting"
    assert list(listed.values()).index("weights") > list(listed.values()).index("targets")
    assert "low-pass filter" in printed("show", "methods")
    assert "cutmix: " in told("show", "method", "mixup")["clashes"]
    card = told("show", "method", "cutmix")
    assert "mixup: " in card["clashes"] and card["settings"]
    assert told("show", "method", "channels_last")["places"] == "model, batch"
    assert "steps (required)" in told("show", "method", "sequence_length_warmup")["settings"]
    shown = printed("show", "method", "blurpool")
    assert "arXiv 1904.11486" in shown and "min_channels=16" in shown
    assert told("show", "method", "bf16")["set by"] == "--precision bf16"
    assert "has no option --bogus" in refused("show", "method", "ema", "--bogus", 3)
    assert "Did you mean blurpool?" in refused("show", "method", "blurpol")
    assert printed("show", "method") == printed("show", "methods")
