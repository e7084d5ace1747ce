"""Every planted cheat is caught by the probe that is made for it, and no honest submission is refused."""

from pathlib import Path

import pytest

from referee import contents
from tests.referee.informed_cheats import INFORMED
from tests.referee.submissions import CHEATS, HAND_OVER_TEXT, HONEST, LAZY, START, TIGHT
from tests.referee.unusual_submissions import UNUSUAL

pytestmark = pytest.mark.processes


def test_the_zoo_is_as_large_as_its_documentation_says():
    assert len(CHEATS) > 70 and len(HONEST) + len(UNUSUAL) > 55


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


def test_the_clock_has_what_is_trained_when_the_weights_are_loaded(examine):
    late = (
        "        if not self.done and self.text.any():\n            self.done = True\n            time.sleep(0.3)\n"
        "            class Task: context, seed = 32, 0\n"
        "            with torch.inference_mode(False), torch.enable_grad():\n"
        "                fit(self.train(), Task, [self.text.clone().numpy()])\n            self.eval()\n"
    )
    body = f"    def forward(self, tokens):\n{late}        return super().forward(tokens)\n{HAND_OVER_TEXT}"
    verdict = examine(START + LAZY + body)
    assert not verdict.failed and verdict.train_seconds is not None, verdict.lines(None)
    assert verdict.loss is not None and verdict.loss < 2.6 and verdict.train_seconds > 0.3


def test_a_table_that_trains_in_no_time_is_named(examine):
    verdict = examine(HONEST["counts of pairs, without gradients"])
    assert not verdict.failed and "so short a time" in verdict.sentence, verdict.sentence


@pytest.mark.parametrize("name", [*HONEST, *UNUSUAL])
def test_an_honest_submission_is_accepted(name, examine):
    verdict = examine((HONEST | UNUSUAL)[name], **TIGHT.get(name, {}))
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
