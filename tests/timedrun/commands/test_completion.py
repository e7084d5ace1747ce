"""`timedrun completion`: what a shell offers at TAB."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from timedrun.cli import main
from timedrun.commands.parser import VERBS

COMPLETE = """
eval "$(timedrun completion bash)"
while read -ra COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_timedrun 2>/dev/null
    echo "${COMPREPLY[@]}"
done
"""


def test_bash_completes_verbs_options_benchmarks_and_configs(tmp_path: Path) -> None:
    (tmp_path / "timedrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m timedrun "$@"\n')
    (tmp_path / "timedrun").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    offered = {
        "ra": "race",
        "run image_": "image_classification",
        "run image_classification cifar10_resnet8_b": "cifar10_resnet8_baseline",
        "show method progr": "progressive_resizing",
        "score --c": "--csv",
    }
    typed = "".join(f"timedrun {words}\n" for words in offered)
    command = ["bash", "-c", COMPLETE]
    done = subprocess.run(command, env=environment, input=typed, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == list(offered.values()), done.stderr


def test_the_script_of_zsh_has_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert all(f"\n    {verb}:" in script for verbs in VERBS.values() for verb in verbs)
