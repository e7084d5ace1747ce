"""Pages read like PyTorch's documentation (CONTRIBUTING.md, style of prose), as far as a machine can tell."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_WORDS, MOST_COLUMNS, MOST_LINES = 32, 100, 120
LONGER = {"decisions.md", "methods.md"}  # methods.md is made from the cards
INVERTED = re.compile(r"(Of|Nor|Gone|Named|Refused|Also \w+ed|Not|Weaker|So|Thus|Whoever|Whatever)\b")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [
    ROOT / f"{benchmark}/README.md" for benchmark in ("image_classification", "image_segmentation", "language_model")
]


def prose(text: str) -> str:
    """Return the paragraphs and list items of a page, without code, tables, headings and links' targets."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    kept = [line for line in text.splitlines() if not re.match(r" {4}|\||#|!\[", line)]
    text = re.sub(r"\n(?=[-*] |\d+\. )", "\n\n", "\n".join(kept))
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", text))


def sentences(text: str) -> list[str]:
    paragraphs = (re.sub(r"\s+", " ", part).lstrip("-*0123456789. ") for part in prose(text).split("\n\n"))
    return [
        sentence
        for part in paragraphs
        for sentence in re.split(r"(?<=[.!?:])\**\s+(?=[A-Z*`\"(]|timedrun )", part)
        if sentence
    ]


def faults(page: Path) -> list[str]:
    """Return the lines and sentences of a page that break the style."""
    text = page.read_text()
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    wide = [line for line in plain.splitlines() if len(line) > MOST_COLUMNS and not re.match(r" {4}|\||!?\[", line)]
    long = [sentence for sentence in sentences(text) if len(sentence.split()) > MOST_WORDS]
    odd = [sentence for sentence in sentences(text) if INVERTED.match(sentence) or sentence.count(";") > 1]
    more = [f"{len(text.splitlines())} lines"] * (page.name not in LONGER and len(text.splitlines()) > MOST_LINES)
    return [*wide, *long, *odd, *more]


def test_every_page_has_short_sentences_whose_subject_comes_first():
    assert not {str(page.relative_to(ROOT)): found for page in PAGES if (found := faults(page))}


def test_sentences_are_found_in_paragraphs_and_lists_without_code_and_tables():
    page = "# Head\n\nOne `a. B` two. Three\nfour.\n- Five: six.\n\n    code. More\n\n| a. B |\n"
    assert sentences(page) == ["One CODE two.", "Three four.", "Five: six."]
