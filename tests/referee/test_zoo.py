"""Every planted cheat is caught by the probe that is made for it, and no honest submission is refused."""

from pathlib import Path

import pytest

from referee import contents
from tests.referee.informed_cheats import INFORMED
from tests.referee.submissions import CHEATS, HAND_OVER_TEXT, HONEST, LAZY, START, TIGHT

pytestmark = pytest.mark.processes
HERE = Path(__file__).parent
PLANTED = CHEATS | INFORMED


def test_the_zoo_is_as_large_as_its_documentation_says():
    assert len(CHEATS) >= 60


@pytest.mark.parametrize("name", PLANTED)
def test_a_cheat_is_caught_for_its_own_reason(name, examine):
    probe, code = PLANTED[name]
    verdict = examine(code, **TIGHT.get(name, {}))
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


@pytest.mark.parametrize("name", ["plain", *sorted(path.stem for path in (HERE / "honest").iterdir())])
def test_an_honest_submission_is_accepted(name, examine):
    code = HONEST if name == "plain" else (HERE / "honest" / f"{name}.py").read_text()
    verdict = examine(code, **TIGHT.get(name, {}))
    assert not verdict.failed, (verdict.lines(None), verdict.output)
    assert verdict.loss is not None and verdict.loss < 2.6
    assert name != "counts" or "so short a time" in verdict.sentence  # a table that trains in no time is named


def test_a_script_in_the_style_of_a_speed_run_is_accepted_with_a_short_adapter(referee):
    assert len((HERE / "speed_run" / "submission.py").read_text().splitlines()) < 30
    verdict = referee.examine(contents.read(HERE / "speed_run", 1 << 20))
    assert not verdict.failed, verdict.lines(None)
    assert verdict.loss is not None and verdict.loss < 2.5 and "step" in verdict.output
