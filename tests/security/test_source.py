"""No Python file of the repository holds what turns data into code; each rule is held against a file that breaks it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("timedrun", "logging/mlevents", "image_classification", "language_model")
CODE_FROM_DATA = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "xml", "lxml"}
OVER_THE_NETWORK = {"urllib", "http", "requests", "httpx", "aiohttp", "ftplib", "huggingface_hub", "xmlrpc"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "tempfile.mktemp",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "pandas.read_pickle",
    "torch.hub.load",
    "torch.jit.load",
}
# Of Python objects between ranks: they are pickled, by ranks that trust each other, and in one module alone.
PICKLED_BETWEEN_RANKS = {
    f"torch.distributed.{name}"
    for name in ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
}
ALLOWED = {("timedrun/distributed/process_group.py", name) for name in PICKLED_BETWEEN_RANKS}
OF_TESTS = {"eval", "exec", "import pickle"}
"""What tests may do, whose data are their own."""


def aliases(tree: ast.Module) -> dict[str, str]:
    """What a name that a file imports stands for."""
    values = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                values[name.asname or name.name.split(".")[0]] = name.name if name.asname else name.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            values |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return values


def called(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what is called, as far as it is written out; "" otherwise."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = called(node.value, names)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return ""


def is_given(call: ast.Call, name: str, value: object) -> bool:
    return any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is value
        for keyword in call.keywords
    )


def violations(text: str, place: str = "") -> Iterator[str]:
    """What a Python file does that none may."""
    tree = ast.parse(text)
    names = aliases(tree)
    product = place.startswith(PRODUCT)
    for name in names.values():
        top = name.split(".")[0]
        if top in CODE_FROM_DATA or (product and top in OVER_THE_NETWORK):
            yield f"import {top}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = called(node.func, names)
        last = name.rpartition(".")[2]
        if name in FORBIDDEN_CALLS | PICKLED_BETWEEN_RANKS:
            yield name
        elif name == "torch.load" and not is_given(node, "weights_only", True):
            yield "torch.load without weights_only=True"
        elif name == "numpy.load" and not is_given(node, "allow_pickle", False) and not place.startswith("tests"):
            yield "numpy.load without allow_pickle=False"
        elif last in ("extract", "extractall", "unpack_archive") and not any(
            keyword.arg == "filter" for keyword in node.keywords
        ):
            yield f"{last} without a filter"
        elif any(keyword.arg == "trust_remote_code" for keyword in node.keywords):
            yield "trust_remote_code"
        elif product and name == "PIL.Image.open" and not any(keyword.arg == "formats" for keyword in node.keywords):
            yield "PIL.Image.open without formats"
        shell = [keyword for keyword in node.keywords if keyword.arg == "shell"]
        if shell and not is_given(node, "shell", False) and name.split(".")[0] in ("subprocess", "asyncio"):
            yield "shell=True"


def files() -> list[Path]:
    """Return every Python file of the repository but those of runs, whose packages hold copies."""
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    return [ROOT / path for path in found if not any(part.startswith(".") or part == "runs" for part in path.parts)]


def test_no_file_turns_data_into_code():
    looked_at = files()
    assert len(looked_at) > 200
    found = {
        (path.relative_to(ROOT).as_posix(), what)
        for path in looked_at
        for what in violations(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
        if what not in OF_TESTS or not path.is_relative_to(ROOT / "tests")
    }
    assert found <= ALLOWED, sorted(found - ALLOWED)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from marshal import loads",
        "import xml.etree.ElementTree as tree",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x', weights_only=False)",
        "from torch import load\nload('x', weights_only=flag)",
        "import numpy as np\nnp.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "import subprocess\nsubprocess.run('x', shell=True)",
        "import subprocess as s\ns.Popen('x', shell=flag)",
        "import os\nos.system('x')",
        "from os import popen\npopen('x')",
        "eval('x')",
        "exec('x')",
        "import tarfile\ntarfile.open('x').extractall()",
        "import shutil\nshutil.unpack_archive('x')",
        "import tempfile\ntempfile.mktemp()",
        "import torch.distributed as dist\ndist.all_gather_object([], 1)",
        "import urllib.request",
        "from transformers import AutoModel\nAutoModel.from_pretrained('x', trust_remote_code=True)",
        "from PIL import Image\nImage.open('x')",
    ],
)
def test_each_rule_finds_what_breaks_it(text):
    assert list(violations(text, "timedrun/x.py"))
