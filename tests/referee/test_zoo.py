"""Every planted cheat is caught by the probe that is made for it, and no honest submission is refused."""

from collections.abc import Callable

import pytest

from referee.verdict import Verdict
from tests.referee.cheats import CHEATS, TIGHT
from tests.referee.honest import HONEST

pytestmark = pytest.mark.processes


def test_the_zoo_is_as_large_as_its_documentation_says() -> None:
    assert len(CHEATS) > 70 and len(HONEST) > 40


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_caught_for_its_own_reason(name: str, examine: Callable[..., Verdict]) -> None:
    probe, code = CHEATS[name]
    verdict = examine(code, **TIGHT.get(name, {}))
    assert probe in {finding.probe for finding in verdict.failed}, (verdict.lines(None), verdict.output)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_submission_is_accepted(name: str, examine: Callable[..., Verdict]) -> None:
    verdict = examine(HONEST[name], **TIGHT.get(name, {}))
    assert not verdict.failed, (verdict.lines(None), verdict.output)
    assert verdict.loss is not None and verdict.loss < 2.6
