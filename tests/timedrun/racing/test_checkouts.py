"""Commits as sides: a folder for each, nothing left, and no silent loss of changes."""

from pathlib import Path

import pytest

from judging.ground.errors import PreflightError, UsageError
from tests.timedrun.conftest import git
from timedrun.racing.checkouts import checked_out, revisions


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits, of which the second, `faster`, changes the script and what is installed; and untracked data."""
    (folder := tmp_path / "repository").mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", "."), git(folder, "commit", "--quiet", "-m", "First")
    git(folder, "checkout", "--quiet", "-b", "faster")
    (folder / "train.py").write_text("print(2)\n")
    (folder / "requirements.txt").write_text("numpy\n")
    git(folder, "add", "."), git(folder, "commit", "--quiet", "-m", "Print two")
    (folder / "data").mkdir()
    (folder / "data" / "tokens").write_text("0")
    return folder


def test_each_side_has_its_commit_built_and_the_shared_data_and_no_folder_stays(repository):
    sides = dict(zip("ab", revisions(repository, ["main", "faster"]), strict=True))
    with checked_out(repository, sides, build="cp train.py built.py", shared=["data"]) as places:
        assert [(places[name] / "built.py").read_text() for name in "ab"] == ["print(1)\n", "print(2)\n"]
        assert all((place / "data" / "tokens").read_text() == "0" for place in places.values())
    assert not any(place.exists() for place in places.values())
    assert len(git(repository, "worktree", "list").splitlines()) == 1 and not (repository / "built.py").exists()


def test_only_what_is_in_the_repository_is_shared(repository):
    sides = dict(zip("a", revisions(repository, ["main"]), strict=True))
    with checked_out(repository, sides, shared=[str(repository / "data")]) as places:
        assert (places["a"] / "data" / "tokens").read_text() == "0"
    for name, words in (("../other", "outside of"), ("train.py", "has it in the commit; name what is untracked")):
        with pytest.raises(PreflightError, match=words), checked_out(repository, sides, shared=[name]):
            pass


def test_changes_that_no_side_has_are_refused_unless_the_tree_itself_is_one(repository):
    (repository / "train.py").write_text("print(3)\n")
    with pytest.raises(UsageError, match=r"1 files: train.py.*commit them, or name the tree"):
        revisions(repository, ["main", "faster"])
    below = repository / "data"  # of it, too, both sides start at the top
    stash = git(repository, "stash", "create")
    with checked_out(below, dict(zip("ab", revisions(repository, ["main", stash]), strict=True))) as places:
        assert (places["b"] / "train.py").read_text() == "print(3)\n"
    assert (repository / "train.py").read_text() == "print(3)\n"


@pytest.mark.parametrize("name", ["mian", "--all"])
def test_an_unknown_commit_is_named(repository, name):
    with pytest.raises(UsageError, match=f"--at {name}: no such commit"):
        revisions(repository, [name])


def test_no_repository_a_failed_build_and_missing_data_are_refused(repository, tmp_path):
    with pytest.raises(UsageError, match="no repository of git"):
        revisions(tmp_path, ["main"])
    sides = dict(zip("a", revisions(repository, ["main"]), strict=True))
    for options, words in (({"build": "echo no tool; exit 3"}, "code 3: no tool"), ({"shared": ["x"]}, "not exist")):
        with pytest.raises(PreflightError, match=words), checked_out(repository, sides, **options):
            pass
    assert len(git(repository, "worktree", "list").splitlines()) == 1
