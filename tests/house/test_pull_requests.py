"""The GitHub Action and the GitLab job race a pull request's base against its head by one script."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.test_readme import ROOT, refusal
from tests.timedrun.racing.test_checkouts import git

SCRIPT = ROOT / "scripts/race_commits.sh"
TRAIN = "import time; print('begin', flush=True); time.sleep({}); print('accuracy', 0.95)"
RACE = ("--quality", "accuracy {}", "--target", "0.9", "--runs", "3", "--start", "", "--build", "")
COMMAND = ("--keep-if", "time < 1.05x", "--", f"{sys.executable} train.py")


DISCARDED = """#!/bin/sh
mkdir -p "$RESULTS" && touch "$RESULTS/report.md"
printf ' "decision": "discard",\\n' > "$RESULTS/race.json" && exit 1
"""


def raced(folder: Path, *words: str, fail_on: str = "discard", results: str = "race", **others: str) -> tuple[int, str]:
    """Return exit code and errors of the script in the repository `folder`; its results and outputs are beside that."""
    known = others | {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "FAIL_ON": fail_on,
        "RESULTS": f"../{results}",
    }
    known |= {f"GITHUB_{name}": str(folder.parent / name) for name in ("STEP_SUMMARY", "OUTPUT")}
    done = subprocess.run([SCRIPT, *words], cwd=folder, env=known, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stderr


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose `main` trains for 0.5 s, begins the branch `fast`, and is the fastest then."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", "repository")
    for branch, seconds, *base in (("main", 0.5), ("fast", 0.02, "main"), ("main", 0, "main")):
        git(folder := tmp_path / "repository", "checkout", "--quiet", "-B", branch, *base)
        (folder / "train.py").write_text(TRAIN.format(seconds))
        git(folder, "add", "."), git(folder, "commit", "--quiet", "-m", f"{seconds} s")
    return folder


@pytest.mark.processes
def test_a_head_is_compared_with_where_it_began_and_fails_as_asked(repository):
    timed = (*RACE, "--start", "begin", *COMMAND)
    assert raced(repository, "main", "fast", *timed, fail_on="keep")[0] == 1
    summary = (repository.parent / "STEP_SUMMARY").read_text()
    assert summary == (repository.parent / "race/report.md").read_text() and summary.startswith("**Verdict:** ")
    order = ["as fast as", ": faster (3 pairs", "**Decision:** keep", "| config |", "Disturbed: ", "Environment: "]
    assert sorted(order, key=summary.index) == order and "train.py\n\nResult not verified by" in summary
    assert (repository.parent / "OUTPUT").read_text() == "decision=keep\nfolder=../race\n"
    assert raced(repository, "main", "fast", *RACE, *COMMAND)[0] == 2  # that is another race's


def test_a_head_that_is_discarded_fails_unless_told_otherwise(repository, tmp_path):
    (tmp_path / "timedrun").write_text(DISCARDED)
    (tmp_path / "timedrun").chmod(0o755)
    for fail_on, code in (("discard", 1), ("keep", 0), ("none", 0)):
        known = {"fail_on": fail_on, "TIMEDRUN": str(tmp_path / "timedrun")}
        assert raced(repository, "main", "fast", **known)[0] == code


def test_what_cannot_be_raced_fails_with_a_reason(repository):
    assert "FAIL_ON=discrad: no decision; nothing was run" in raced(repository, "main", "fast", fail_on="discrad")[1]
    git(repository.parent, "clone", "--quiet", "--depth", "1", "--branch", "fast", repository.as_uri(), "shallow")
    code, said = raced(repository.parent / "shallow", "main", "HEAD", *RACE, *COMMAND)
    assert code == 2 and "GitHub: fetch-depth: 0; GitLab: GIT_DEPTH: 0" in said
    code, said = raced(repository, "main", "fast", *RACE[:-1], "exit 3", *COMMAND, fail_on="none")
    assert code == 1 and "--build ended with exit code 3" in said and not (repository.parent / "race").exists()


def test_the_action_and_the_job_pass_what_they_are_given_to_the_script_as_options_of_race():
    import yaml

    action, job = (yaml.safe_load((ROOT / name).read_text()) for name in ("action.yml", "scripts/gitlab_race.yml"))
    step, job = action["runs"]["steps"][1], job["race"]
    assert {*re.findall(r"inputs\.([\w-]+)", str(action["runs"]))} == {*action["inputs"]}
    for text, given in ((step["run"], step["env"]), (job["script"][-1], job["variables"])):
        assert "/scripts/race_commits.sh" in text and "${{" not in text  # an input is never part of a script
        read = {name for name in re.findall(r"\$\{?([A-Z]\w+)", text) if not name.startswith(("CI_", "RUNNER_"))}
        options = [word for name in re.findall(r" (--[a-z-]+) ", text) for word in (name, "1")]
        assert read <= {*given} and len(options) == 12
        assert not refusal(["race", "command", "--at", "a", "--at", "b", *options, "--", "x"])
