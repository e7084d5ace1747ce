"""Sandbox that the tests of a process share, with a text drawn from a chain of tokens."""

import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from referee import contents
from referee.referee import Examination, Referee
from referee.sandbox import SandboxUnavailable
from referee.session import Limits
from referee.verdict import Verdict

VOCABULARY, CONTEXT = 64, 32
LIMITS = Limits(
    prepare_seconds=30, budget_seconds=30, answer_seconds=10, late_seconds=5, processes=24, memory_bytes=1 << 30,
    work_bytes=8 << 20, output_bytes=1 << 20, weights_bytes=1 << 22,
)  # fmt: skip
SETTINGS = Examination(
    VOCABULARY, CONTEXT, limits=LIMITS, rows=48, tolerance=2e-3, margin=0.1, time_ratio=1.5, time_grace=5
)


def text(count: int, seed: int) -> np.ndarray:
    """Draw a chain of tokens; each token's successors are the same for every seed."""
    sums = np.random.default_rng(0).dirichlet([0.05] * VOCABULARY, VOCABULARY).cumsum(1)
    tokens = [0]
    for uniform in np.random.default_rng(seed).random(count):
        tokens.append(min(VOCABULARY - 1, int(np.searchsorted(sums[tokens[-1]], uniform))))
    return np.array(tokens, dtype=np.uint16)


@pytest.fixture(scope="session")
def token_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write train.npy and validation.npy, 99 rows, of which 48 are asked about and 48 continue others."""
    folder = tmp_path_factory.mktemp("tokens")
    np.save(folder / "train.npy", text(8000, 1))
    np.save(folder / "validation.npy", text(3200, 2))
    return folder


@pytest.fixture(scope="session", autouse=True)
def unread() -> Iterator[None]:
    """Leave the system's caches as they are: to read all files, or to forget all names, takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("referee.sandbox.read_ahead", lambda folders: True)
        patch.setattr("referee.sandbox.DROP", Path(os.devnull))
        yield


@contextmanager
def made_referee(settings: Examination, train: Path, validation: Path, *, isolated: bool = True) -> Iterator[Referee]:
    """Return a referee, whose looks at a session that has handed over its weights are quick; skip without a sandbox."""
    try:
        made = Referee(settings, train, validation, train.parent, isolated=isolated)
    except SandboxUnavailable as error:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        spaces = ["--mount", "--net", "--pid", "--fork", "--mount-proc"]
        if subprocess.run(["unshare", *user, *spaces, "true"]).returncode == 0:
            raise  # the sandbox is at fault, not the machine
        pytest.skip(str(error))
    with made, pytest.MonkeyPatch.context() as patch:
        patch.setattr("referee.referee.BUSY_SECONDS", 0.02)
        patch.setattr("referee.referee.BUSY_ROUNDS", 15)
        yield made


@pytest.fixture(scope="session")
def referee(token_files: Path) -> Iterator[Referee]:
    """Return a referee whose sandbox is shared."""
    with made_referee(SETTINGS, token_files / "train.npy", token_files / "validation.npy") as made:
        yield made


@pytest.fixture(scope="session")
def plain_referee(token_files: Path) -> Iterator[Referee]:
    """Return a referee without a sandbox, whose sessions start sooner."""
    data = token_files / "train.npy", token_files / "validation.npy"
    with made_referee(SETTINGS, *data, isolated=False) as made:
        yield made


def examining(referee: Referee, tokens: Path, folder: Path) -> Callable[..., Verdict]:
    """Return a function that examines a submission's code, with other limits or settings."""

    def examined(code: str, **changes: float) -> Verdict:
        (folder / "base.py").write_text(Path(__file__).with_name("base.py").read_text())
        (folder / "submission.py").write_text(code.replace("VALIDATION", str(tokens / "validation.npy")))
        before = referee.settings
        own = {name: changes.pop(name) for name in ("time_grace", "ranks", "prefix") if name in changes}
        limits = dataclasses.replace(before.limits, **changes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(referee, "settings", dataclasses.replace(before, limits=limits, **own))
            patch.setattr(contents, "windows_held", lambda *_: 0)  # which has tests of its own
            return referee.examine(contents.read(folder, limits.code_bytes))

    return examined


@pytest.fixture
def examine(referee: Referee, token_files: Path, tmp_path: Path) -> Callable[..., Verdict]:
    """Return a function that examines a submission's code in the sandbox."""
    return examining(referee, token_files, tmp_path)


@pytest.fixture
def examine_plain(
    plain_referee: Referee, token_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Verdict]:
    """Return a function that examines code that needs no sandbox to be caught, and one cut of a row."""
    monkeypatch.setattr("referee.probes.CUTS", 1)
    return examining(plain_referee, token_files, tmp_path)
