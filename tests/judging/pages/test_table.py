"""Tables are plain and stable in files, and fit any terminal."""

import pytest

from judging.pages.table import Table

HEADER = ["system", "runs", "minutes", "notes"]
ROWS = [
    ["dgxa100_ngc22.04_merlin_hugectr", "4 of 5", "62.213 min", "[bold]with brackets[/bold] and more words"],
    ["short", "10 of 10", "-", ""],
]


def test_without_a_terminal_a_row_is_a_line_with_two_blanks_between_cells_and_numbers_to_the_right():
    header, rule, first, second = Table(HEADER, ROWS).lines()
    assert header == "system                               runs     minutes  notes"
    assert set(rule) == {"-", " "}
    assert first == "dgxa100_ngc22.04_merlin_hugectr    4 of 5  62.213 min  [bold]with brackets[/bold] and more words"
    assert second == "short                            10 of 10           -"


@pytest.mark.parametrize("width", [120, 80, 60])
def test_a_terminals_width_is_kept_without_losing_a_character(width):
    lines = Table(HEADER, ROWS).lines(width)
    assert max(map(len, lines)) <= width
    assert any(line.split()[-3:-1] == ["4", "of"] or "4 of 5  62.213 min" in line for line in lines)
    letters = sorted("".join(lines[2:]).replace(" ", ""))
    assert letters == sorted("".join(cell for row in ROWS for cell in row).replace(" ", ""))


def test_a_narrow_table_folds_between_words_and_never_within_a_number():
    header = ["config", "speed-up [95 %]", "range", "median / digits_methods"]
    rows = [["a long config name", "1.03x [0.01, 114.76]", "0.51 - 0.80 s", "2.65x"], ["b", "-", "1 s", "1"]]
    lines = Table(header, rows).lines(60)
    assert max(map(len, lines)) <= 60
    assert lines == [
        "                                                    median /",
        "config        speed-up [95 %]          range  digits_methods",
        "-------- --------------------- -------------- --------------",
        "a long   1.03x [0.01, 114.76]  0.51 - 0.80 s           2.65x",
        "config",
        "name",
        "b                           -            1 s               1",
    ]


def test_markdown_and_html_have_the_same_cells_and_html_escapes_them():
    table = Table(["name", "runs"], [["<b>", "1 of 2"], ["c", "-"]])
    assert table.markdown() == ["| name | runs |", "|---|---|", "| <b> | 1 of 2 |", "| c | - |"]
    html = "".join(table.html())
    assert '<th>name</th><th class="number">runs</th>' in html and '<td class="number">1 of 2</td>' in html
    assert "<b>" not in html and "<td>&lt;b&gt;</td>" in html
    assert "<th" not in "".join(Table((), [("a", "1")]).html()) and "<td" not in "".join(Table(["a"], []).html())
