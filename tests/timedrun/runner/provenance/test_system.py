"""System description, software environment and state of the source tree."""

import hashlib
import importlib.metadata
import json
import os
import types
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import MagicMock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from mlperf_logging.system_desc_checker import system_desc_checker

from mlevents.package_checker.system_description import KEYS
from tests.timedrun.conftest import git
from timedrun.runner.provenance import hardware, source, system

UNKNOWN = dict.fromkeys(("commit", "dirty", "difference"), "unknown")


@pytest.mark.parametrize("device", ["cpu", ""])
def test_description_passes_mlcommons_checker_and_is_all_text(tmp_path, monkeypatch, device):
    monkeypatch.setattr(hardware, "gpus", lambda: ["Example GPU"] * 2)
    description = system.describe("Example", "box-baseline", ranks=1, device=device)
    assert tuple(description) == KEYS and len(description) == 33
    found = ("0", "N/A", f"PyTorch {torch.__version__}")
    if not device:
        found = ("2", "Example GPU", "of the command, see environment.txt")
    names = ("accelerators_per_node", "accelerator_model_name", "framework")
    assert tuple(description[name] for name in names) == found
    path = tmp_path / "box-baseline.json"
    path.write_text(json.dumps(description))
    valid, name, _, _ = system_desc_checker.check_system_desc(str(path), "training", "2.0.0")
    assert valid and name == "box-baseline"
    software = description.pop("other_software_stack")
    assert isinstance(software, dict)
    assert software.get("mlperf-logging") == (importlib.metadata.version("mlperf-logging") if device else None)
    assert all(isinstance(value, str) for value in [*description.values(), *software.values()])


def test_torch_describes_gpus(monkeypatch):
    card = types.SimpleNamespace(name="Example GPU", total_memory=80 * 2**30, L2_cache_size=50 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    described = hardware.accelerator(8)
    expected = {"accelerators_per_node": "8", "accelerator_model_name": "Example GPU", "accelerator_interconnect": ""}
    expected |= {"accelerator_memory_capacity": "80 GiB", "accelerator_on-chip_memories": "L2 50 MiB"}
    assert described.items() >= expected.items() and set(described) <= set(KEYS)


def test_ranks_divide_over_the_nodes_that_the_launcher_says(monkeypatch):
    assert system.describe("Example", "box", ranks=4, device="cpu")["number_of_nodes"] == "1"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    description = system.describe("Example", "box", ranks=4, device="cpu")
    assert description["number_of_nodes"] == "2" and description["host_networking_topology"] == ""


def test_environment_lists_every_distribution(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # instructions that were forbidden are part of it
    text = system.environment()
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in text.splitlines()
    listed = text.partition("installed distributions:\n")[2].split()
    assert f"torch=={importlib.metadata.version('torch')}" in listed
    assert listed == sorted(listed, key=lambda line: line.partition("==")[0].lower())
    names = {line.partition("==")[0].lower() for line in listed}
    assert {d.metadata["Name"].lower() for d in importlib.metadata.distributions()} == names


COMMITTED = {"train.py": b"pass\n", "kernel.bin": b"\0\xff"}


def committed(folder: Path, files: Mapping[str, bytes] = COMMITTED) -> Path:
    """A new repository with one commit of `files`."""
    folder.mkdir()
    git(folder, "init", "-q")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return committed(tmp_path / "repository")


def difference(folder: Path) -> object:
    return source.provenance(folder)["difference"]


def test_provenance_of_a_clean_tree_is_its_commit(repository, monkeypatch):
    clean = {"commit": git(repository, "rev-parse", "HEAD"), "dirty": False, "difference": None}
    assert source.provenance(repository) == clean
    (repository / "result.txt").write_text("a result is no code")
    monkeypatch.setenv("GIT_DIR", str(repository / "elsewhere"))
    assert source.provenance(repository) == clean


@pytest.mark.parametrize(
    ("files", "dirty"),
    [
        (["train.py"], True),
        (["new.py"], True),
        (["sub/new ä.py"], True),
        (["race/a/run_0/config.json", "race/a/run_0/source/model.py"], False),
        (["race/package/X/manifest.json", "race/package/X/systems/a.json", "race/package/X/results/a/b/result_0.txt",
          "race/package/X/benchmarks/b/implementations/timedrun/cli.py"], False),
        (["race/a/run_0/source/model.py"], True),
        (["manifest.json", "results/a.py"], True),
    ],
)  # fmt: skip
def test_changed_or_added_code_makes_the_tree_dirty(repository, files, dirty):
    for name in files:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("changed = True\n")
    assert source.provenance(repository)["dirty"] is dirty


def difference_with(repository: Path, files: Mapping[str, bytes | None]) -> object:
    """That of the repository's own commit with `files` as they are here, None for one that is deleted."""
    git(repository, "reset", "-q", "--hard")
    git(repository, "clean", "-q", "-d", "-f", "-x")
    for name, content in files.items():
        if content is None:
            (repository / name).unlink(missing_ok=True)
        else:
            (repository / name).write_bytes(content)
    return difference(repository)


FILES = st.dictionaries(
    st.sampled_from(["train.py", "kernel.bin", "new.py", "new ä.py"]), st.none() | st.binary(max_size=3), max_size=3
)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=FILES, second=FILES)
@example(first={"train.py": b"rate = 1\n"}, second={"train.py": b"rate = 2\n"})
@example(first={"new.py": b""}, second={"new ä.py": b""})
@example(first={"kernel.bin": b"\0\r\n"}, second={"kernel.bin": b"\0\n"})
@example(first={"train.py": None}, second={"train.py": b""})
@example(first={"train.py": b"pass\n"}, second={})
def test_equal_files_have_an_equal_difference_and_any_other_change_has_another(repository, first, second):
    trees = []
    for files in (first, second):
        trees.append({name: content for name, content in (COMMITTED | files).items() if content is not None})
    differences = [difference_with(repository, files) for files in (first, second)]
    assert [given is None for given in differences] == [tree == COMMITTED for tree in trees]
    assert (differences[0] == differences[1]) is (trees[0] == trees[1])
    assert difference_with(repository, first) == differences[0]


def test_modes_links_and_submodules_are_part_of_the_difference(repository, tmp_path):
    differences = [difference(repository)]

    def changed(path: Path, text: str) -> None:
        path.write_text(text)
        differences.append(difference(repository))

    def linked(target: Path) -> None:
        (repository / "linked.py").unlink(missing_ok=True)
        (repository / "linked.py").symlink_to(target)

    changed(repository / "train.py", "rate = 1\n")
    (repository / "train.py").chmod(0o755)
    differences.append(difference(repository))
    for rate in (1, 2):  # a link's own text stays
        linked(tmp_path / "elsewhere")
        changed(tmp_path / "elsewhere", f"rate = {rate}\n")
    linked(repository)
    part = committed(repository / "part", {"model.py": b"pass\n"})
    git(repository, "add", "part")
    for rate in (1, 2):
        changed(part / "train.py", f"rate = {rate}\n")
    (part / ".git").rename(tmp_path / "gone")
    differences.append(difference(repository))
    assert len(set(differences)) == len(differences) and "unknown" not in differences


def test_only_changes_below_the_root_count(repository):
    (repository / "sub").mkdir()
    (repository / "sub" / "model.py").write_text("")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    differences = []
    for below, beside in ((1, 1), (2, 2), (2, 3)):
        (repository / "sub" / "model.py").write_text(f"rate = {below}\n")
        (repository / "train.py").write_text(f"rate = {beside}\n")
        differences.append(difference(repository / "sub"))
    assert differences[0] != differences[1] == differences[2]


def test_what_git_cannot_tell_and_an_unreadable_change_are_unknown(repository, tmp_path, monkeypatch):
    (repository / "train.py").write_text("rate = 1\n")
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", MagicMock(side_effect=PermissionError))
        assert difference(repository) == "unknown"
    assert source.provenance(tmp_path) == UNKNOWN
    assert source.provenance(tmp_path / "missing") == UNKNOWN
    (repository / ".gitignore").write_text("env/\n")
    (repository / "env").mkdir()
    assert source.provenance(repository / "env") == UNKNOWN, "a folder inside a repository that does not hold it"
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert source.provenance(repository) == UNKNOWN


@pytest.mark.parametrize("dirty", [True, False])
def test_outside_of_git_the_commit_is_that_of_the_image(tmp_path, dirty):
    commit = "0123456789abcdef" * 2 + "01234567"
    (tmp_path / source.COMMIT_FILE).write_text(json.dumps({"commit": commit, "dirty": dirty}))
    (tmp_path / "package").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path)  # an image has one, to where results go
    origins = []
    for rate in (1, 1, 2):
        (tmp_path / "package" / "train.py").write_text(f"rate = {rate}\n")
        origins.append(source.provenance(tmp_path))
    assert {(origin["commit"], origin["dirty"]) for origin in origins} == {(commit, dirty)}
    first, again, changed = (origin["difference"] for origin in origins)
    assert first == again != changed if dirty else first is again is changed is None  # only the build knew what differs


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"commit": "unknown", "dirty": true}', '{"commit": 7, "dirty": true}', '{"dirty": true}', "\xff"],
)
def test_an_invalid_commit_file_is_ignored(tmp_path, content):
    (tmp_path / source.COMMIT_FILE).write_text(content, encoding="latin-1")
    assert source.provenance(tmp_path) == UNKNOWN
