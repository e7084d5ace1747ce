"""Documents come out of WikiExtractor's format and of plain text, compressed or not; what is broken is named."""

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from judging.ground.errors import DataError
from language_model.text import corpus
from language_model.text.corpus import Corpus, Document, clean_line

WIKI = """<doc id="1" url="x" title="A &amp; &quot;B&quot;">
A & "B"

First line. It has two sentences.
Heading.
</doc>
<doc id="2" url="x" title="Empty">
Empty

()
</doc>
<doc id="3" url="x" title="Third">
Third

Zoë went home ( ; ) &lt;br&gt; late.
</doc>
"""
PLAIN = "One sentence.\nAnother one.\n\n\n  \n...\n\nThird document.\n"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def documents(*paths: Path) -> list[Document]:
    return list(Corpus(paths))


def test_wikiextractor_documents_lose_title_and_markup_and_are_split(tmp_path):
    found = documents(write(tmp_path / "wiki_00", WIKI))
    assert [document.sentences() for document in found] == [
        ["First line.", "It has two sentences.", "Heading."],
        [],
        ["Zoë went home late."],
    ]
    assert [document.empty for document in found] == [False, True, False]
    assert found[0].name == 'wiki_00: A & "B"'


def test_plain_text_has_a_sentence_a_line_and_blank_lines_between_documents(tmp_path):
    found = documents(write(tmp_path / "text", PLAIN))
    assert [document.sentences() for document in found] == [["One sentence.", "Another one."], [], ["Third document."]]


@pytest.mark.parametrize("compress", [lzma.compress, bz2.compress, gzip.compress])
def test_compression_is_told_by_content_not_by_name_and_a_file_cut_off_is_refused(tmp_path, compress):
    packed = write(tmp_path / "a.txt", compress(WIKI.encode()))
    plain = write(tmp_path / "b.xz", WIKI)
    assert [d.text for d in documents(packed)] == [d.text for d in documents(plain)]
    whole = compress(("A sentence of some length.\n" * 999).encode())
    with pytest.raises(DataError, match=r"part\.txt.*cannot be read completely"):
        documents(write(tmp_path / "part.txt", whole[: len(whole) // 2]))


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path):
    for content in (WIKI, PLAIN):
        usual = documents(write(tmp_path / "a", content))
        other = documents(write(tmp_path / "b", b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode()))
        assert [d.sentences() for d in other] == [d.sentences() for d in usual]
        assert [d.fingerprint for d in other] == [d.fingerprint for d in usual]


def test_a_file_without_any_sentence_is_refused(tmp_path):
    good = write(tmp_path / "good", PLAIN)
    for content in ("", "\n\n", "...\n\n---\n", '<doc id="1" title="T">\nT\n\n&nbsp;\n</doc>\n'):
        with pytest.raises(DataError, match="hollow contains no document with a sentence"):
            documents(good, write(tmp_path / "hollow", content))


def test_a_wikiextractor_file_that_ends_inside_a_document_and_json_lines_are_refused(tmp_path):
    with pytest.raises(DataError, match="wiki_07: Third has no </doc>"):
        documents(write(tmp_path / "wiki_07", WIKI.removesuffix("</doc>\n")))
    with pytest.raises(DataError, match=r"wiki_07: text outside <doc> .*stray"):
        documents(write(tmp_path / "wiki_07", WIKI + "stray\n"))
    with pytest.raises(DataError, match="JSON"):
        documents(write(tmp_path / "wiki_00", '{"id": "1", "text": "A"}\n'))


def test_an_endless_document_is_refused_before_memory_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LARGEST_DOCUMENT", 1000)
    with pytest.raises(DataError, match="endless: document 1 .*larger than 1,000 characters"):
        documents(write(tmp_path / "endless", "A line.\n" * 500))
    with pytest.raises(DataError, match="a line of more than 1,000 characters"):
        documents(write(tmp_path / "endless", "A word " * 500))


def test_folders_are_read_in_sorted_order_without_hidden_files(tmp_path):
    for name in ("b/wiki_01", "a/wiki_02", ".hidden", "a/.DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, f"From {name}.\n")
    corpus = Corpus([tmp_path])
    assert [d.text for d in corpus] == ["From a/wiki_02.\n", "From b/wiki_01.\n"]
    assert corpus.consumed_bytes == corpus.total_bytes > 0


def test_a_missing_path_an_empty_folder_and_a_file_named_twice_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    file = write(tmp_path / "text", PLAIN)
    for paths, words in [
        ([tmp_path / "none"], "does not exist"),
        ([tmp_path / "empty"], "contains no file"),
        ([file, tmp_path], "is listed twice"),
    ]:
        with pytest.raises(DataError, match=words):
            Corpus(paths)


def test_cleaning_keeps_less_than_signs_that_are_no_tags():
    assert clean_line("if a &lt; b and c &gt; d (x) [ ]") == "if a < b and c > d (x)"
    assert clean_line('<ref name="x">a</ref> (, born 1900)') == "a (born 1900)"
