"""Text that is made to take long takes no longer than other text: time grows with its length, not with its square."""

import pytest

from language_model.text.corpus import Corpus, clean_line
from language_model.text.sentences import split_sentences
from mlevents.event import LogReader

MANY = 200_000
# What each takes is some hundredths of a second; with a square in it, minutes to hours.
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        *((clean_line, "<b a=" + " " * MANY + "<"), (clean_line, "<b a= " * MANY)),
        *((clean_line, "(" + " " * MANY + "x"), (clean_line, "(" + "&#32;" * MANY + "x")),
        *((clean_line, "(" + "( )" * MANY + "x"), (clean_line, "(" + "," * MANY + "x")),
        *((clean_line, "(" * MANY + "x"), (split_sentences, "." * MANY + "x"), (split_sentences, '."' * MANY + "x")),
        *((split_sentences, "." + '"' * MANY + "x"), (split_sentences, '. """" ' * MANY + "x")),
    ],
    ids=lambda value: ascii(value)[:16] if isinstance(value, str) else value.__name__,
)
def test_no_line_of_a_corpus_takes_the_square_of_its_length(use, text):
    assert {*"".join(use(text))} <= {*text, " "}  # in the time of `pytestmark`


@pytest.mark.parametrize("end", ['">', '" x>', "", '" ">'])
def test_no_title_of_a_document_takes_the_square_of_its_length(end, tmp_path):
    file = tmp_path / "wiki_00"
    file.write_text("<doc id=1" + ' title="' * MANY + end + "\nt\n\nA sentence.\n</doc>\n")
    assert len(list(Corpus([file]))) == 1


@pytest.mark.parametrize(
    "record",
    [
        "{" + ",".join(f'"a{number}":0' for number in range(MANY)) + ',"a0":1}',
        "{ :::MLLOG " * MANY,
        "{:::MLLOG" * MANY,
        "[" * MANY,
        '{"a":' * MANY,
        '{"key": "a", "time_ms": ' + "1" * MANY + "}",
    ],
    ids=["names", "marks", "bare marks", "lists", "objects", "digits"],
)
def test_no_record_of_a_log_takes_the_square_of_its_length(record):
    reader = LogReader("log")
    assert not list(reader.events(1, f":::MLLOG {record}".encode())) and reader.problems
    assert len(reader.problems) < 1000
    if record.startswith("{ :::MLLOG"):
        assert "rest of the line skipped" in reader.problems[-1].message
