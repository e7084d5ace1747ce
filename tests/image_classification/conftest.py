"""Real data for tests, where it lies beside the repository."""

import subprocess
import sys
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10's original binary batches, rebuilt."""
    source = SHARED / "cifar10"
    if not source.is_dir():
        pytest.skip("the real CIFAR-10 does not lie beside the repository")
    out = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, str(source / "unpack_cifar10.py"), str(source), str(out)], check=True, timeout=100)
    return out
