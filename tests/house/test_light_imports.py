"""Checking and scoring logs needs none of the heavy packages, so it starts at once, wherever logs lie."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "scipy", "pandas", "yaml", "matplotlib", "transformers")
MODULES = (
    *("mlevents.checks.log_check", "mlevents.mlcommons", "mlevents.runlog", "mlevents.package_checker.tree"),
    *(f"timedrun.commands.{verb}" for verb in ("check", "explore", "score", "reproduce")),
    *("timedrun.racing.conduct", "timedrun.racing.command_race", "timedrun.racing.child_run"),
    *("timedrun.evidence.race_package", "timedrun.evidence.submission.packaging.package"),
)
WORDS = ("--help", "run --help", "race --help", "show", "show methods", "--completion bash")
MISTAKES = ("run bart baseline", "run image_classification basline", "race image_classification methods none.json")


def loaded_after(*statements: str) -> str:
    """Return what of `HEAVY` is loaded after each statement, in a new process."""
    probe = "import sys, timedrun.cli\n"
    for statement in statements:
        probe += f"try: {statement}\nexcept SystemExit: pass\n"
        probe += f"print({statement!r}, [n for n in {HEAVY} if n in sys.modules], file=sys.stderr)\n"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60).stderr


def test_no_module_of_the_check_and_score_path_imports_anything_heavy():
    statements = ["from timedrun import mlperf_run", *(f"import {module}" for module in MODULES)]
    assert loaded_after(*statements) == "".join(f"{statement} []\n" for statement in statements)


def test_help_lists_and_mistakes_import_nothing_heavy():
    statements = [f"timedrun.cli.main({words.split()})" for words in WORDS + MISTAKES]
    lines = loaded_after(*statements).splitlines()
    assert [line for line in lines if line.startswith("timedrun.cli")] == [
        f"{statement} []" for statement in statements
    ]


def test_methods_do_not_import_the_compiler():
    probe = "import sys, timedrun.methods; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
