"""Each promise of ARCHITECTURE.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_promise_is_held_by_tests_that_exist() -> None:
    rows = re.findall(r"^\| (P\d+)\. .* \| (.*) \|$", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    assert [name for name, _ in rows] == [f"P{number}" for number in range(1, 15)]
    for name, tests in rows:
        named = re.findall(r"`([\w/]+)::(\w+)`", tests)
        assert named, name
        for module, test in named:
            assert f"def {test}(" in (ROOT / "tests" / f"{module}.py").read_text(), f"{name}: {module}::{test}"
