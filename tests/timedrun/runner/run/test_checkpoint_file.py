"""Checkpoint files are whole or absent, and bad ones are refused."""

import contextlib
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from judging.ground.atomic_file import FileWriter
from timedrun.runner.run import checkpoint_file
from timedrun.runner.run.checkpoint_file import CheckpointError, load, save

STATE: dict[str, Any] = {
    "model": {"weight": torch.arange(2000, dtype=torch.float32), "counter": torch.tensor(3)},
    "random": [torch.get_rng_state(), (1, (2, 3), None)],
    "position": {"step": 12, "loss": 0.25, "name": "run", 7: b"bytes", "resumed": True},
}


def same(first: Any, second: Any) -> bool:
    (ours, structure), (theirs, other) = tree_flatten(first), tree_flatten(second)
    return structure == other and all(
        type(a) is type(b) and (a.dtype == b.dtype and torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b)
        for a, b in zip(ours, theirs, strict=True)
    )


def test_what_was_saved_is_loaded_also_by_torch(tmp_path):
    path = tmp_path / "new" / "step_00000012.pt"
    save(path, STATE)
    assert same(load(path), STATE)
    assert same(torch.load(path, weights_only=True), STATE)
    assert os.listdir(path.parent) == [path.name]


def test_a_flipped_bit_or_a_truncation_anywhere_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    save(path, STATE)
    whole = path.read_bytes()
    places = np.linspace(0, len(whole) - 1, 20).astype(int).tolist()
    damaged = [whole[:at] + bytes([whole[at] ^ 1 << (at % 8)]) + whole[at + 1 :] for at in places]
    damaged += [whole[:size] for size in (0, 1, 79, 80, 81, len(whole) // 2)] + [whole[:-cut] for cut in (81, 80, 1)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"a\.pt"):
            load(path)
    path.write_bytes(whole)
    assert same(load(path), STATE)


def signed(path: Path) -> None:
    """Append the footer that `save` writes."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes() + b"timedrun-sha256:" + digest.encode())


def packed(path: Path) -> None:
    """Write an archive that unpacks to more than its size."""
    torch.save({"weights": torch.zeros(1 << 20)}, stored := path.with_name("stored.pt"))
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(path, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name), zipfile.ZIP_DEFLATED)
    assert len(torch.load(path, weights_only=True)["weights"]) == 1 << 20  # torch unpacks it
    signed(path)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: torch.save(STATE, path), "not written by timedrun"),
        (os.mkfifo, "not a regular file"),  # and is not waited for
        (packed, r"a\.pt .* not used: it would unpack from [0-9,]{5,6} to 4,19[0-9],[0-9]{3} bytes"),
        # Without torch's advice to load them all the same.
        (
            lambda path: (torch.save({"step": Path("x")}, path), signed(path)),
            r"a\.pt .* not used: it holds more than tensors and plain values$",
        ),
    ],
)
def test_files_of_other_kinds_are_refused(tmp_path, write, words):
    write(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path / "a.pt")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.pt")


@pytest.mark.parametrize("value", [np.ones(2), {1, 2}, np.float32(1), object])
def test_values_that_load_would_refuse_are_not_saved(tmp_path, value):
    save(tmp_path / "a.pt", {"step": 1})
    with pytest.raises(TypeError, match=r"state\['methods'\]\[1\] is a .*nothing was written"):
        save(tmp_path / "a.pt", {"methods": [0, value]})
    assert os.listdir(tmp_path) == ["a.pt"] and load(tmp_path / "a.pt") == {"step": 1}


@pytest.mark.parametrize("owner, call", [(os, "fsync"), (os, "replace"), (FileWriter, "write")])
def test_a_full_disk_leaves_only_the_old_file_and_its_reason_is_told(tmp_path, monkeypatch, owner, call):
    save(tmp_path / "a.pt", {"step": 1})
    with monkeypatch.context() as patched:
        patched.setattr(owner, call, MagicMock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(CheckpointError, match="no partial file is left: No space left on device$") as caught:
            save(tmp_path / "a.pt", {"step": 2})
    assert checkpoint_file.plain_reason(caught.value) == "No space left on device"
    assert checkpoint_file.plain_reason(ValueError("a path /home")) == ""
    assert os.listdir(tmp_path) == ["a.pt"] and load(tmp_path / "a.pt") == {"step": 1}


def test_a_file_is_on_disk_before_its_name_and_both_at_the_end(tmp_path, monkeypatch):
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    kinds = {True: "folder", False: "file"}
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(kinds[os.path.isdir(f"/proc/self/fd/{fd}")]), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    save(tmp_path / "a.pt", {"step": 1})
    assert calls == ["file", "rename", "folder"]


WRITER = """
import os, pathlib, signal, sys, torch
from timedrun.runner.run.checkpoint_file import save
folder, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
for step in range(10**6):
    if step == limit:
        os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)  # everything is written, nothing renamed
    save(folder / f"step_{step % 5}.pt", {"step": step, "weights": torch.full((500_000,), step)})
"""


@pytest.mark.parametrize("last, seconds", [(7, 60.0), (10**6, 0.03)])
def test_a_writer_killed_at_any_moment_leaves_only_whole_checkpoints(tmp_path, last, seconds):
    writer = subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(tmp_path), str(last)], stdout=subprocess.PIPE)
    writer.stdout.readline()
    with contextlib.suppress(subprocess.TimeoutExpired):
        writer.wait(seconds)
    writer.kill()
    writer.communicate()
    states = {path.name: load(path) for path in tmp_path.glob("*.pt")}
    assert all((state["weights"] == state["step"]).all() for state in states.values())
    if last == 7:
        assert sorted(state["step"] for state in states.values()) == [2, 3, 4, 5, 6]
        assert [path.name for path in tmp_path.glob("*.draft")] == ["step_2.pt.draft"]
