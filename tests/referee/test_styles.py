"""Scripts in the style of a speed run and of a chat model's base training meet the contract in under 30 lines."""

from pathlib import Path

import pytest

from referee import contents
from referee.referee import Referee

STYLES = Path(__file__).with_name("styles")


@pytest.mark.processes
@pytest.mark.parametrize("style", ["speed_run", "chat"])
def test_a_script_in_a_known_style_is_accepted_with_a_short_adapter(style: str, referee: Referee) -> None:
    assert len((STYLES / style / "submission.py").read_text().splitlines()) < 30
    verdict = referee.examine(contents.read(STYLES / style, 1 << 20))
    assert not verdict.failed, verdict.lines(None)
    assert verdict.loss is not None and verdict.loss < 2.5 and "step" in verdict.output
