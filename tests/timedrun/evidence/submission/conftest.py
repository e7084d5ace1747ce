"""Result sets of the judge's tests, packaged and reproduced here."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.ground.result_files import read_json
from tests.judging.conftest import make_set, published, source, write_run, write_set
from timedrun.evidence.submission.packaging.package import PackageError, PackageReport, package

__all__ = ["make_set", "published", "source", "write_run", "write_set"]


@pytest.fixture
def result_set(tmp_path, make_set) -> Path:
    """A results folder of five runs."""
    return make_set(tmp_path / "set")


@pytest.fixture
def small_set(tmp_path, make_set) -> Path:
    """A results folder of one run."""
    return make_set(tmp_path / "set", times=(1.0,))


@pytest.fixture
def packaged(tmp_path, source) -> Callable[..., PackageReport]:
    """Packages sets for the submitter Example into a folder of the test, without MLCommons' check unless asked for."""

    def make(*sets: Path, out: str = "out", submitter: str = "Example", **options: Any) -> PackageReport:
        options = {"source": source, "check": False, **options}
        return package(list(sets), tmp_path / out, submitter=submitter, **options)

    return make


@pytest.fixture
def refuses(tmp_path, packaged) -> Callable[..., str]:
    """Packages sets, which must fail with `words` and leave all files of the test as they are; returns the message."""

    def refuse(*sets: Path, words: str, kind: type[Exception] = PackageError, **options: Any) -> str:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(kind, match=words) as caught:
            packaged(*sets, **options)
        assert sorted(tmp_path.rglob("*")) == before
        return str(caught.value)

    return refuse


def implementation(report: PackageReport, system: str = "1xCPU-baseline", benchmark: str = "resnet") -> Path:
    """Return the folder of a system's scripts and descriptions in a package."""
    return report.folder / "benchmarks" / benchmark / "implementations" / system


def described(report: PackageReport) -> dict[str, Any]:
    """Return the description of the implementation of the packaged set."""
    return read_json(implementation(report) / "1xCPU-baseline_timedrun.json")


def probe_python(folder: Path, script: str) -> str:
    """Write a shell script that takes the place of `python`; return the PATH on which it does."""
    probe = folder / "bin" / "python"
    probe.parent.mkdir()
    probe.write_text(f"#!/bin/sh\n{script}")
    probe.chmod(0o755)
    return f"{probe.parent}:{os.environ['PATH']}"
