"""The explorer's page: self-contained, safe with hostile logs, and, in a real Chromium, usable."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judging.pages.explorer.chromium import PROGRAM, Chromium
from timedrun import cli

TAB, ENTER, ESCAPE = ("Tab", 9), ("Enter", 13), ("Escape", 27)
pytest.importorskip("vl_convert", reason="needs the extra 'explorer'")


@pytest.fixture
def page(results: Path, tmp_path: Path) -> Path:
    """The page of `results`, with a price for the sets of one config."""
    out = tmp_path / "page.html"
    hostile = "<b>title</b> {{data}}"
    words = ["explore", str(results), "--out", str(out), "--title", hostile, "--price", "1xCPU-baseline=6"]
    assert cli.main(words) == 0
    return out


def test_the_page_loads_nothing_and_runs_only_its_own_scripts(page: Path) -> None:
    text = page.read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy and policy[1].startswith("default-src 'none'; script-src 'sha256-") and "unsafe-eval" not in policy[1]
    assert "unsafe-inline" not in policy[1].partition("script-src")[2].partition(";")[0]
    markup = re.sub(r"<script.*?</script>|<!--.*?-->", "", text, flags=re.DOTALL)
    assert not re.search(r"https?:|//|\bsrc=|@import|url\(", markup)


def test_texts_of_logs_are_data_and_never_markup(page: Path) -> None:
    text = page.read_text()
    assert text.count("</script>") == 3 and "onerror" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<h1>&lt;b&gt;title&lt;/b&gt; {{data}}</h1>" in text
    embedded = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert embedded and "<" not in embedded[1]
    systems = [one["system"] for one in json.loads(embedded[1])["sets"]]
    assert r'</script><img src=x onerror="document.title=1">\u202e{{data}}' in systems  # its direction mark is shown


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("no chromium on the PATH: the page was not tested in a browser (apt-get install chromium)")
    browser = Chromium(tmp_path / "profile", tmp_path)
    yield browser
    browser.close()


ROWS = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent)"
CHOOSE = """((name, value) => {
    const select = document.getElementById('select-' + name);
    select.value = value;
    select.dispatchEvent(new Event('change'));
})"""


@pytest.mark.processes
def test_a_reader_filters_sorts_compares_and_saves_in_a_real_browser(
    page: Path, chromium: Chromium, tmp_path: Path
) -> None:
    chromium.open(page)
    # The most frequent task, compared with its baseline by default; a set without a time comes last.
    assert chromium.run(ROWS) == ["digits_methods", "digits_baseline", "=1+1"]
    assert chromium.run("document.querySelectorAll('canvas').length") == 2
    (ratio,) = chromium.run(
        "[...document.querySelectorAll('tbody td')].map(c => c.textContent).filter(t => /^[0-9.]+x$/.test(t))"
    )
    assert ratio == "1.833x"  # 11 min against 6 min

    chromium.run(f"{CHOOSE}('config', '=digits_methods')")
    assert chromium.run(ROWS) == ["digits_methods"]
    assert chromium.run("document.getElementById('summary').textContent").startswith("1 of 3 sets shown, 3 logs")
    chromium.run(f"{CHOOSE}('config', '')")
    chromium.run(f"{CHOOSE}('level', 'run')")
    assert len(chromium.run(ROWS)) == 7

    chromium.run("document.querySelector('[data-column=minutes]').click()")
    cells = chromium.run(
        "[...document.querySelectorAll('tbody tr')].map(row => row.textContent).map(t => /([0-9.]+) min/.exec(t)[1])"
    )
    assert [float(cell) for cell in cells] == [12, 11, 10, 7, 6, 5, 2]
    assert chromium.run("document.querySelector('[aria-sort=descending]').textContent") == "Time ▾"

    chromium.run("document.getElementById('csv').click()")
    chromium.run("document.getElementById('svg').click()")
    saved, figure = tmp_path / "timedrun.csv", tmp_path / "timedrun-time.svg"
    for _ in range(3000):  # a minute, for a busy machine
        if saved.exists() and figure.exists():
            break
        chromium.run("new Promise(done => setTimeout(done, 20))")
    assert "Time to train, minutes" in figure.read_text()
    rows = list(csv.DictReader(saved.read_text().splitlines()))
    assert [float(row["minutes"]) for row in rows] == [12, 11, 10, 7, 6, 5, 2]
    assert rows[-1]["name"] == "'=1+1" and rows[0]["path"] == "results/baseline/result_2.txt"
    assert rows[0]["notice"] == "Result not verified by MLCommons Association." and "run_stop" in rows[0]["lines"]

    chromium.run(f"{CHOOSE}('dataset', '=imagenet')")
    assert chromium.run(ROWS) == ["imagenet_baseline: result_0.txt"]
    assert chromium.errors == [] and chromium.run("document.title") == "<b>title</b> {{data}}"
    assert chromium.run("document.images.length") == 0


@pytest.mark.processes
def test_links_open_their_card_and_the_keyboard_opens_and_closes_it(page: Path, chromium: Chromium) -> None:
    embedded = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert embedded
    sets = {one["config"]: one for one in json.loads(embedded[1])["sets"]}
    run = sets["imagenet_baseline"]["runs"][0]
    chromium.open(page, f"#{run['id']}")  # of a task that is not shown at first
    card = chromium.run("document.getElementById('card').innerText")
    log = "results/v2.0/Example Inc/results/box/resnet/result_0.txt"
    assert "30.000 min" in card and f"timedrun score --json '{log}'" in card
    assert f"grep -nE '\"(block_start|block_stop|epoch_start|eval_start|eval_stop)\"' '{log}'" in card
    assert f"line {run['lines']['run_stop']}" in card and "not verified by MLCommons" in card
    assert chromium.run(ROWS) == ["imagenet_baseline: result_0.txt"]
    chromium.press(*ESCAPE)
    assert chromium.until("!document.getElementById('card').open && location.hash === ''")

    chromium.open(page)
    order = []
    for _ in range(40):
        chromium.press(*TAB)
        order.append(chromium.run("document.activeElement.id || document.activeElement.textContent"))
        if order[-1] == "digits_methods":
            break
    assert order[:2] == ["select-level", "select-dataset"]  # a choice of one is not shown
    assert order.index("log") < order.index("Name") < order.index("digits_methods")
    chromium.press(*ENTER)
    chromium.until("document.getElementById('card').open")
    card = chromium.run("document.getElementById('card').innerText")
    assert "45 % less time" in card and "1.833x = 1.500x (fewer samples)" in card
    chromium.press(*ESCAPE)
    chromium.until("!document.getElementById('card').open")
    assert chromium.run("document.activeElement.textContent") == "digits_methods"
    assert chromium.errors == []
