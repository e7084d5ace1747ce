"""`timedrun doctor --completion` answers at TAB."""

import os
import subprocess
import sys

from timedrun.commands.parser import VERBS

COMPLETE = """
eval "$(timedrun doctor --completion bash)"
while read -ra COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_timedrun 2>/dev/null
    echo "${COMPREPLY[@]}"
done
"""


def test_bash_completes_verbs_options_benchmarks_and_configs(tmp_path):
    (tmp_path / "timedrun").write_text(f'#!/bin/sh\nexec {sys.executable} -m timedrun "$@"\n')
    (tmp_path / "timedrun").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    offered = {
        "ra": "race",
        "run image_c": "image_classification",
        "run image_classification cifar10_resnet8_b": "cifar10_resnet8_baseline",
        "show method progr": "progressive_resizing",
        "run --threads 2 image_classification methods_": "",
        "race image_classification methods base": "baseline_2022 baseline",
        "show image_classification --diff digits_m": "digits_methods",
        "run image_classification --data cifar10 94_b": "94_baseline",
        "score --target": "--target-test",
    }
    typed = "".join(f"timedrun {words}\n" for words in offered)
    command = ["bash", "-c", COMPLETE]
    done = subprocess.run(command, env=environment, input=typed, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == list(offered.values()), done.stderr


def test_the_script_of_zsh_has_every_verb(printed):
    script = printed("doctor", "--completion", "zsh")
    assert all(f"\n    {verb}:" in script for verbs in VERBS.values() for verb in verbs)
