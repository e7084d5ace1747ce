"""No Python file turns data into code: ruff forbids it, and this what ruff has no rule for."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("timedrun", "logging", "referee", "image_classification", "image_segmentation", "language_model")
ONLY_WITH = {
    r"\btorch\.load\(": "weights_only=True",
    r"\b(?:np|numpy)\.load\(": "allow_pickle=False",
    r"\bImage\.open\(": "formats=",
    r"\bextractall\(": "**DATA_FILTER",
    r"\b(?:trust_remote_code|allow_pickle=True|unpack_archive)\b": "[none]",
}
"""Call -> what must stand in its line."""


def test_the_product_loads_only_plain_values():
    lines = [
        line for folder in PRODUCT for path in (ROOT / folder).rglob("*.py") for line in path.read_text().split("\n")
    ]
    called = {call: [line for line in lines if re.search(call, line)] for call in ONLY_WITH}
    assert [*map(bool, called.values())] == [True, True, True, True, False]
    assert not [line for call, found in called.items() for line in found if ONLY_WITH[call] not in line]


FORBIDDEN = (
    *("import pickle", "from marshal import loads", "import xml.etree.ElementTree as tree", "import urllib.request"),
    "import yaml\nyaml.load('x', Loader=yaml.Loader)",
    *("import subprocess\nsubprocess.run('', shell=True)", "import os\nos.system('')", "from os import popen\npopen()"),
    *("eval('x')", "exec('x')", "import tarfile\ntarfile.open('x').extractall()", "import tempfile\ntempfile.mktemp()"),
    *("import torch.distributed as dist\ndist.all_gather_object([], 1)", "import torch\ntorch.jit.load('x')"),
)


def test_ruff_finds_each_of_what_is_forbidden(tmp_path):
    for number, text in enumerate(FORBIDDEN):
        (tmp_path / f"case_{number}.py").write_text(f"{text}\n")
    ruff = ["ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--no-cache", "--output-format", "concise"]
    said = subprocess.run([*ruff, str(tmp_path)], capture_output=True, text=True).stdout
    missed = [text for number, text in enumerate(FORBIDDEN) if f"case_{number}.py:" not in said]
    assert not missed, said
