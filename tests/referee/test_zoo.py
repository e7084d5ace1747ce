"""Every planted cheat is caught by the probe that is made for it, and no honest submission is refused."""

from pathlib import Path

import pytest

from referee import contents
from tests.referee.informed_cheats import INFORMED
from tests.referee.submissions import CHEATS, HONEST, TIGHT

pytestmark = pytest.mark.processes


def test_the_zoo_is_as_large_as_its_documentation_says():
    assert len(CHEATS) > 70 and len(HONEST) > 40


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_caught_for_its_own_reason(name, examine):
    probe, code = CHEATS[name]
    verdict = examine(code, **TIGHT.get(name, {}))
    assert probe in {finding.probe for finding in verdict.failed}, (verdict.lines(None), verdict.output)


@pytest.mark.parametrize("name", INFORMED)
def test_a_cheat_by_a_reader_of_the_source_is_caught_for_its_own_reason(name, examine):
    probe, code = INFORMED[name]
    verdict = examine(code)
    assert probe in {finding.probe for finding in verdict.failed}, (verdict.lines(None), verdict.output)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_submission_is_accepted(name, examine):
    verdict = examine(HONEST[name], **TIGHT.get(name, {}))
    assert not verdict.failed, (verdict.lines(None), verdict.output)
    assert verdict.loss is not None and verdict.loss < 2.6


STYLES = Path(__file__).with_name("styles")


@pytest.mark.processes
@pytest.mark.parametrize("style", ["speed_run", "chat"])
def test_a_script_in_a_known_style_is_accepted_with_a_short_adapter(style, referee):
    assert len((STYLES / style / "submission.py").read_text().splitlines()) < 30
    verdict = referee.examine(contents.read(STYLES / style, 1 << 20))
    assert not verdict.failed, verdict.lines(None)
    assert verdict.loss is not None and verdict.loss < 2.5 and "step" in verdict.output
