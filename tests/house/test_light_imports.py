"""Checking and scoring logs needs none of the heavy packages, so it starts at once, wherever logs lie."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "scipy", "pandas", "yaml", "matplotlib", "transformers")


@pytest.mark.parametrize(
    "module",
    [
        "mlevents.checks.log_check",
        "mlevents.mlcommons",
        "mlevents.runlog",
        "mlevents.package_checker.tree",
        "timedrun.commands.audit",
        "timedrun.commands.check",
        "timedrun.commands.explore",
        "timedrun.commands.score",
        "timedrun.commands.reproduce",
        "timedrun.submission.packaging.package",
    ],
)
def test_a_module_of_the_check_and_score_path_imports_nothing_heavy(module: str) -> None:
    probe = f"import sys, timedrun.cli, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["race", "--help"],
        ["sweep", "command", "--help"],
        ["list"],
        ["list", "methods"],
        ["completion", "bash"],
    ],
)
def test_help_and_list_import_nothing_heavy(words: list[str]) -> None:
    probe = (
        "import sys, timedrun.cli\n"
        f"try: timedrun.cli.main({words})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]" and done.stdout


def test_methods_do_not_import_the_compiler() -> None:
    probe = "import sys, timedrun.methods; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
