"""Each promise of docs/promises.md is held by tests that exist and that run on CI."""

import pytest

from tests.conftest import TESTS, promised_tests, refuse_skipped_promise


def test_every_promise_is_held_by_tests_that_exist():
    assert list(promised_tests()) == [f"P{number}" for number in range(1, 15)]
    for name, tests in promised_tests().items():
        assert tests, name
        for module, _, test in (test.partition("::") for test in tests):
            assert f"def {test}(" in (TESTS / f"{module}.py").read_text(), f"{name}: {module}::{test}"


@pytest.mark.parametrize(("outcome", "after"), [("skipped", "failed"), ("passed", "passed")])
def test_a_skipped_test_of_a_promise_is_a_failure_and_no_other(outcome, after):
    module, _, test = promised_tests()["P1"][0].partition("::")
    for nodeid, expected in ((f"tests/{module}.py::{test}[shape]", after), ("tests/x/test_y.py::test_z", outcome)):
        report = pytest.TestReport(nodeid, ("", 0, ""), {}, outcome, "no GPU", "call")
        refuse_skipped_promise(report)
        assert report.outcome == expected
