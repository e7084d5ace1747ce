"""The report of a race as one page."""

import json
from argparse import Namespace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from judging.ground.errors import ExitCode, UsageError
from timedrun.commands.report import report
from timedrun.race.race_file import Race

HOSTILE = "<script>alert(1)</script>"


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the names and attributes of a page's elements."""
    seen: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: seen.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(page)
    return seen


@pytest.fixture
def page(tmp_path: Path, race: Race) -> str:
    """The page of a race of two sides, one of them with a hostile label."""
    race.sides["b"] = HOSTILE
    for turn in race.turns:
        config = tmp_path / turn.side / f"run_{turn.number}" / "config.json"
        config.parent.mkdir()
        config.write_text(json.dumps({"name": turn.side, "optimizer": {"peak_lr": 0.1 if turn.side == "a" else 0.2}}))
    race.save(tmp_path)
    code = report(Namespace(path=str(tmp_path), out=None, json=True))
    assert code is ExitCode.ERROR  # the checks fail, since these logs lack most events
    return (tmp_path / "report.html").read_text()


def test_the_page_has_table_figures_settings_and_every_log(page: str) -> None:
    assert "faster" in page and "Result not verified by MLCommons Association." in page
    assert '<td>optimizer.peak_lr</td><td class="number">0.1</td><td class="number">0.2</td>' in page
    for number in range(3):
        assert f"<td>a/result_{number}.txt</td>" in page and f"<td>b/result_{number}.txt</td>" in page
    images = [attributes for tag, attributes in elements(page) if tag == "img"]
    assert [image["alt"] for image in images] == ["Quality over time"]


def test_the_page_loads_nothing_and_runs_nothing_out_of_a_log(page: str) -> None:
    assert not {"script", "link", "iframe"} & {tag for tag, _ in elements(page)}
    sources = [attributes.get("src") or attributes.get("href") or "" for _, attributes in elements(page)]
    assert all(source.startswith("data:") for source in sources if source)
    assert "&lt;script&gt;" in page


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing was written"):
        report(Namespace(path=str(tmp_path), out=None, json=True))
