"""A good submission, which tests change copies of."""

from pathlib import Path

import pytest

from tests.mlevents.conftest import good_records
from tests.mlevents.package_checker.package_mutations import write_good_package


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A submission with nothing wrong in it."""
    return write_good_package(tmp_path_factory.mktemp("good") / "Nobody", good_records)
