"""Every expansion in a shell script stands in quotes, so that no path or option is split or expanded again."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from judging.ground.result_files import ResultPaths
from timedrun.evidence.submission.packaging import package_scripts

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for pattern in ("scripts/*.sh", "scripts/*.sbatch", ".ci/run") for path in ROOT.glob(pattern))
DOCKERFILE = """FROM scratch
SHELL ["/bin/bash", "-c"]
RUN <<OF_SCRIPT
{}
OF_SCRIPT
"""
FAULTS = ("SC2086", "SC2046", "SC2006", "SC2048", "SC2068", "SC2206", "SC2207", "SC1", "DL1000")
"""Those of expansions, outputs of commands and arrays without quotes; the last two of what could not be read."""


def unquoted(text: str) -> list[str]:
    """What stands in no double quotes in a script, by ShellCheck, which hadolint applies to the commands of a
    Dockerfile; and what that lets pass: in the list of a `for` and in the words of ${x:+words}."""
    command = ["hadolint", "--no-fail", "--format", "json", "-"]
    said = subprocess.check_output(command, input=DOCKERFILE.format(text), text=True, timeout=60)
    bare = re.sub(r'"[^"]*"', "", text)
    return [
        *(finding["message"] for finding in json.loads(said) if finding["code"].startswith(FAULTS)),
        *re.findall(r"\bfor \w+ in [^;\n]*\$.*|\$\{\w+:?\+[^}]*\$.*", bare),
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_quotes_every_expansion_and_obeys_no_cdpath_where_it_changes_its_folder(script):
    text = script.read_text()
    assert not unquoted(text)
    before, changed, _ = text.partition("cd ")
    assert not changed or "unset CDPATH" in before or 'cd "$SLURM_SUBMIT_DIR"' in text


def test_the_scripts_of_a_package_quote_every_expansion(tmp_path):
    settings = {"package_name": "image_classification", "ranks": 2, "threads": 4, "paths": [ResultPaths(Path(), 0)]}
    settings |= {"own_methods": {"my_module:MyMethod": "0"}, "configs": [{"seed": 1, "command": "true"}]}
    kinds = [SimpleNamespace(**settings, is_command=is_command) for is_command in (False, True)]
    (tmp_path / "pyproject.toml").write_text('[project.optional-dependencies]\nvision = ["pillow>=10"]\n')
    files = [package_scripts.scripts(kind, tmp_path, "pillow==11\n") for kind in kinds]
    scripts = [text for of in files for name, text in of.items() if name.endswith(".sh")]
    assert len(scripts) == 6
    assert all(script.count('"$') + script.count('"${') > 1 for script in scripts)
    assert all("unset CDPATH" in script.partition("cd ")[0] for script in scripts)
    assert not [expansion for script in scripts for expansion in unquoted(script)]
