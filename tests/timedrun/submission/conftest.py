"""Result sets of the judge's tests, packaged and reproduced here."""

from tests.judging.conftest import make_set, published, source, write_run

__all__ = ["make_set", "published", "source", "write_run"]
