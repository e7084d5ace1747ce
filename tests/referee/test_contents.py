"""Validation text in a submission's files, in whatever symbols, is found; code and quotations are not."""

import base64
import lzma
import zlib
from pathlib import Path

import numpy as np
import pytest

from referee import contents
from referee.contents import ALLOWED, WINDOW, windows_held
from tests.referee.conftest import text
from tests.referee.submissions import CHEATS

VALIDATION = text(3200, 2)
OTHER = np.random.default_rng(3).permutation(64)[VALIDATION]  # other numbers for the same text
LETTERS = "".join(chr(48 + token) for token in OTHER)
PACKED = {
    "letters": repr(LETTERS),
    "letters from the middle of the text": repr(LETTERS[777:]),
    "short texts": "[" + ", ".join(repr(LETTERS[n : n + 50]) for n in range(0, 3200, 50)) + "]",
    "words": repr(" ".join(f"w{token}" for token in OTHER)),
    "numbers": repr(OTHER.tolist()),
    "negative numbers": repr((-OTHER).tolist()),
    "bytes": repr(OTHER.astype("<u1").tobytes()),
    "pairs of bytes": repr(OTHER.astype("<u2").tobytes()),
    "hexadecimal": repr(OTHER.astype("<u1").tobytes().hex()),
    "base 64": repr(base64.b64encode(OTHER.astype("<u2").tobytes()).decode()),
    "packed base 85": repr(base64.b85encode(zlib.compress(OTHER.astype("<u1").tobytes())).decode()),
    "letters backwards": repr(LETTERS[::-1]),
    "letters that are shifted by their place": repr(
        "".join(chr(48 + (ord(a) + n) % 64) for n, a in enumerate(LETTERS))
    ),
    "numbers that are shifted the other way, backwards": repr([int(t - n) % 64 for n, t in enumerate(OTHER)][::-1]),
    "packed otherwise": repr(base64.b64encode(lzma.compress(LETTERS.encode()))),
}
LIMITS = {"code_bytes": 1 << 20, "literal_items": 20_000}


@pytest.mark.parametrize("name", PACKED)
def test_validation_text_that_is_known_by_heart_is_found(name):
    found = contents.examine(
        {"submission.py": f"TEXT = {PACKED[name]}\n".encode()}, **LIMITS, validation=[VALIDATION], vocabulary=64
    )
    assert not found.passed and "tokens of the validation data, of 1,024 allowed" in found.reason
    assert int(found.reason.split()[4].replace(",", "")) > 2000


@pytest.mark.parametrize("words", [[chr(48 + token) for token in OTHER], [f"w{token} " for token in OTHER]])
@pytest.mark.parametrize("line", [40, 3200])
def test_validation_text_in_comments_is_found_and_counted_once(words, line):
    texts = ["".join(words[start : start + line]) for start in range(0, len(words), line)]
    code = "".join(f"pass  # {text}\n" for text in texts)
    assert 40 < windows_held({"submission.py": code.encode()}, [VALIDATION]) <= 3200 // WINDOW


def test_validation_text_in_a_config_is_found():
    files = {"submission.py": b"", "text.json": repr(OTHER.tolist()).encode(), "text.txt": LETTERS.encode()}
    assert windows_held(files, [VALIDATION]) > ALLOWED


def test_scripts_and_a_quotation_hold_no_validation_text():
    here = Path(__file__).parent
    codes = [*(code for probe, code in CHEATS.values() if probe != "contents"), Path(__file__).read_text()]
    folders = [contents.read(path, 1 << 20) for path in (here / "speed_run", *(here / "honest").iterdir())]
    for files in [*folders, *({"submission.py": code.encode()} for code in codes)]:
        assert windows_held(files, [VALIDATION], 64) == 0
    quoted = {"submission.py": repr(LETTERS[:1000]).encode()}
    assert contents.examine(quoted, **LIMITS, validation=[VALIDATION], vocabulary=64).passed


def test_a_regular_pattern_is_no_text():
    files = {"submission.py": repr([n % 7 for n in range(4000)]).encode()}
    assert windows_held(files, [np.arange(4000, dtype=np.uint16) % 7, np.zeros(4000, np.uint16)]) == 0
