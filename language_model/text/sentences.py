"""Rule-based splitting of English paragraphs into sentences: abbreviations, initials, decimals and quotations."""

import re

_ABBREVIATIONS = """
    mr mrs ms messrs dr prof rev fr st ste hon gov sen rep gen col maj capt cmdr lt sgt cpl pvt adm brig pres supt mt
    ft nos vol vols ed eds pp p pg fig figs sec ch op cf ca c approx est viz vs v dept univ assn ave blvd rd jan feb
    apr jun jul aug sep sept oct nov dec thu thurs b d r fl incl ext trans repr
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Lower-case words after which a full stop does not end a sentence."""
CLOSING_ABBREVIATIONS = frozenset({"al", "bros", "co", "corp", "etc", "inc", "jr", "ltd", "sr"})
"""Abbreviations that can end a sentence, if one of `STARTERS` follows."""
NUMBERED = frozenset({"art", "mar", "no"})
"""Abbreviations before a number, ordinary words elsewhere."""
_STARTERS = """
    a after all although an and as at both but by despite during each for from he her his however i if in it its many
    most my no on one other our she since some such that the their there these they this those to under until we what
    when where while who with you
"""
STARTERS = frozenset(_STARTERS.split())
"""Words that begin a sentence if capitalized after an acronym with full stops, as in "in the U.S. The"."""
_BOUNDARY = re.compile(r"""(?<![.!?…])[.!?…]++["'”’)\]»]*+[ ]++(?=["'“‘(\[«]*[A-Z0-9À-ÖØ-ÞĀ-ɏͰ-ϿЀ-Я])""")
_LAST_WORD = re.compile(r"""[^\s("'“‘\[«—–/]*$""")
_ACRONYM = re.compile(r"^(?:[A-Za-z]\.)+[A-Za-z]$")
_NEXT_WORD = re.compile(r"""["'“‘(\[«]*([^\W_]+)""")


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph with single spaces into sentences; joined by a space they are the paragraph.

    A sentence ends at . ! ? or an ellipsis, including closing quotes and brackets, before a capital or a digit. A full
    stop does not end it after a known abbreviation, an initial ("J. Smith"), or "No." and similar before a number.
    After an acronym with full stops or "Inc." and similar it does if a common first word follows ("in the U.S. The").
    """
    sentences: list[str] = []
    start = 0
    for match in _BOUNDARY.finditer(paragraph):
        if match.group()[0] == "." and not _ends(paragraph, start, match.start(), match.end()):
            continue
        sentences.append(paragraph[start : match.end()].rstrip())
        start = match.end()
    if start < len(paragraph):
        sentences.append(paragraph[start:])
    return sentences


def _ends(paragraph: str, start: int, stop: int, following: int) -> bool:
    """Return True if the full stop at `stop` ends the sentence from `start` before the word at `following`."""
    word = _LAST_WORD.search(paragraph, max(start, stop - 24), stop)
    last = word.group() if word else ""
    if not last:
        return True
    lower = last.lower()
    if lower in ABBREVIATIONS:
        return False
    if lower in NUMBERED and paragraph[following].isdigit():
        return False
    if len(last) == 1 and last.isupper() and last != "I":
        return False
    if lower in CLOSING_ABBREVIATIONS or _ACRONYM.match(last):
        after = _NEXT_WORD.match(paragraph, following)
        return after is not None and after.group(1).lower() in STARTERS
    return True
