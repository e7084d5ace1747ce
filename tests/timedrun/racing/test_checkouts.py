"""Commits as sides: a folder for each, nothing left, and no silent loss of changes."""

from pathlib import Path

import pytest

from judging.ground.errors import PreflightError, UsageError
from tests.timedrun.conftest import git
from timedrun.racing.checkouts import LOCKED, WORKTREE, checked_out, differences, hint, revisions


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
    with checked_out(repository, sides, build="cp train.py built.py", shared=[f"{repository}/data"]) as places:
        assert [(places[name] / "built.py").read_text() for name in "ab"] == ["print(1)\n", "print(2)\n"]
        assert all((place / "data" / "tokens").read_text() == "0" for place in places.values())
    assert not any(place.exists() for place in places.values())
    assert len(git(repository, "worktree", "list").splitlines()) == 1 and not (repository / "built.py").exists()


def test_of_a_folder_that_the_commit_has_in_part_what_is_untracked_is_shared(repository):
    (repository / "data" / "prepare.py").touch()
    git(repository, "add", "data/prepare.py"), git(repository, "commit", "--quiet", "-m", "Part")
    (repository / "data" / "more").mkdir()
    (repository / "data" / "more" / "a").write_text("1")
    (repository / ".gitignore").write_text("tokens\n")
    sides = dict(zip("ab", revisions(repository, ["HEAD", "main"]), strict=True))
    with checked_out(repository, sides, shared=["data"]) as places:
        assert (places["b"] / "data").is_symlink()
        part = {path.name: path.is_symlink() for path in (places["a"] / "data").iterdir()}
        assert part == {"prepare.py": False, "tokens": True, "more": True}
    git(repository, "rm", "--quiet", "--cached", "data/prepare.py"), git(repository, "commit", "--quiet", "-m", "None")
    with checked_out(repository, sides, shared=["data"]) as places:  # all of it is untracked now, not so in the commit
        assert {path.name: path.is_symlink() for path in (places["a"] / "data").iterdir()} == part


SHARE, EMPTY = "is in no commit: add share =", "is in a submodule, which is empty here: add --build 'git"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/tokens'", f'data/tokens {SHARE} ["data"]'),
        ("no weights in part/model.bin.", f'part/model.bin {SHARE} ["part"]'),
        ("ModuleNotFoundError: No module named 'lib.q'", f"lib/q {EMPTY}"),
        ("can't open file '{place}/lib/q.py': [Errno 2]", f"lib/q.py {EMPTY}"),
        ("FileNotFoundError: 'nowhere/tokens' ../repository/data/tokens train.py loss 0.5 in part/own.py", ""),
    ],
)
def test_a_missing_file_is_traced_to_the_option_that_brings_it(repository, line, told):
    (repository / "part").mkdir()
    (repository / "part" / "own.py").touch()
    git(repository, "clone", "--quiet", ".", "lib")
    git(repository, "add", "part/own.py"), git(repository, "submodule", "--quiet", "add", "./lib", "lib")
    git(repository, "commit", "--quiet", "-m", "Library")
    (repository / "part" / "model.bin").touch()
    with checked_out(repository, dict(zip("a", revisions(repository, ["HEAD"]), strict=True))) as places:
        found = hint(repository, places["a"], ["epoch 1", line.format(place=places["a"])])
    assert found.startswith(told) and bool(found) == bool(told)


def test_what_differs_is_told(repository):
    lines = differences(repository, *revisions(repository, ["main", "faster"]))
    assert "Print two" in lines[1] and lines[-1] == "files that differ: 2; of what is installed: requirements.txt"
    assert LOCKED.search("uv.lock") and not LOCKED.search("my.pyproject.toml") and not LOCKED.search("results/.lock")


def test_changes_that_no_side_has_are_refused_unless_the_tree_itself_is_one(repository):
    (repository / "train.py").write_text("print(3)\n")
    with pytest.raises(UsageError, match=r"1 files: train.py.*commit them, or name --at worktree"):
        revisions(repository, ["main", "faster"])
    below = repository / "data"  # of it, too, both sides start at the top
    with checked_out(below, dict(zip("ab", revisions(repository, ["main", WORKTREE]), strict=True))) as places:
        assert (places["b"] / "train.py").read_text() == "print(3)\n"
    assert (repository / "train.py").read_text() == "print(3)\n"


@pytest.mark.parametrize(
    ("folder", "name", "words"),
    [
        ("repository", "mian", "branches: faster, main"),
        ("repository", "--all", "no such commit"),
        (".", "main", "no repository of git"),
    ],
)
def test_no_repository_and_an_unknown_commit_are_refused_with_the_branches(repository, tmp_path, folder, name, words):
    with pytest.raises(UsageError, match=words):
        revisions(tmp_path / folder, [name])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"build": "echo no tool; exit 3"}, "code 3: no tool"),
        ({"shared": ["x"]}, "not exist"),
        ({"shared": ["../other"]}, "outside of"),
        ({"shared": ["train.py"]}, "leave it out"),
    ],
)
def test_a_failed_build_and_data_that_cannot_be_shared_are_refused(repository, options, words):
    sides = dict(zip("a", revisions(repository, ["main"]), strict=True))
    with pytest.raises(PreflightError, match=words), checked_out(repository, sides, **options):
        pass
    assert len(git(repository, "worktree", "list").splitlines()) == 1
