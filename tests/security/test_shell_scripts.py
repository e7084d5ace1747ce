"""Every expansion in a shell script stands in quotes, so that no path or option is split or expanded again."""

import re
from pathlib import Path

import pytest

from timedrun.submission.packaging import package_scripts

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for pattern in ("scripts/*.sh", "scripts/*.sbatch", ".ci/run") for path in ROOT.glob(pattern))
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_NUMBERS = ("?", "#", "$")
"""Expansions that are always numbers."""


def unquoted(text: str) -> list[str]:
    """The expansions of a script that stand in no double quotes, each from its dollar sign to the end of its line.

    Not counted: the right side of an assignment, which is never split, numbers, and ${x:+words} as such, which gives
    words that are written there (what they expand is counted)."""
    texts = []
    closes = []  # what ends each construct that is open: '"' or ")" or "}"
    word = place = 0  # where the word under way begins
    while place < len(text):
        sign = text[place]
        quoted = bool(closes) and closes[-1] in ('"', '}"')
        if closes and sign == closes[-1][0] and (sign != '"' or closes[-1] == '"'):
            closes.pop()
        elif sign == "\\":
            place += 1
        elif sign == "'" and not quoted:
            place = text.index("'", place + 1)
        elif sign == '"':
            closes.append('"')
        elif sign == "#" and not quoted and place == word:
            place = text.find("\n", place) - 1
            if place < 0:
                break
        elif sign == "`" or (sign == "$" and text[place + 1 : place + 2] in ("(", "{") or _named(text, place)):
            inner = text[place + 1 : place + 2]
            name = _NAME.match(text, place + 2 if inner == "{" else place + 1)
            after = text[name.end() : name.end() + 2] if name else ""
            assigned = re.match(r"[A-Za-z_]\w*\+?=", text[word:place])
            harmless = (name and name[0] in _NUMBERS) or (inner == "{" and after in (":+", "+"))
            if sign == "`" or not (quoted or assigned or harmless):
                texts.append(text[place:].partition("\n")[0])
            if inner == "(":
                closes.append(")")
            elif inner == "{":
                closes.append('}"' if quoted else "}")
            if inner in ("(", "{"):
                place += 1
                word = place + 1
        elif sign.isspace() or sign in ";|&()":
            word = place + 1
        place += 1
    return texts


def _named(text: str, place: int) -> bool:
    return text[place] == "$" and _NAME.match(text, place + 1) is not None


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_quotes_every_expansion(script):
    assert not unquoted(script.read_text())


@pytest.mark.parametrize("script", [path for path in SCRIPTS if "cd " in path.read_text()], ids=lambda path: path.name)
def test_a_script_that_changes_its_folder_obeys_no_cdpath(script):
    text = script.read_text()
    assert "unset CDPATH" in text.partition("cd ")[0] or 'cd "$SLURM_SUBMIT_DIR"' in text


def test_the_scripts_of_a_package_quote_every_expansion(tmp_path):
    class Set:
        package_name, ranks, threads, own_methods = "image_classification", 2, 4, {"my_module:MyMethod": "0"}
        is_command, configs = False, ({"seed": 1, "command": "true"},)

        class _Run:
            number, side = 0, Path("run_0")

        paths = (_Run,)

    class SetOfACommand(Set):
        is_command = True

    value = Set
    command = SetOfACommand
    (tmp_path / "pyproject.toml").write_text('[project.optional-dependencies]\nvision = ["pillow>=10"]\n')
    files = [package_scripts.scripts(of, tmp_path, "pillow==11\n") for of in (value, command)]
    scripts = [text for of in files for name, text in of.items() if name.endswith(".sh")]
    assert len(scripts) == 6
    assert all(script.count('"$') + script.count('"${') > 1 for script in scripts)
    assert all("unset CDPATH" in script.partition("cd ")[0] for script in scripts)
    assert not [expansion for script in scripts for expansion in unquoted(script)]


def test_an_expansion_without_quotes_is_found_and_a_quoted_one_is_not():
    bare = ("rm $1", 'rm "$1" ${2}', "rm $(cat x)", 'rm "$(cat $1)"', "rm `cat x`", "rm ${1:+$1}", 'rm "a"$1')
    for text in (*bare, "for x in $list; do echo; done", "if [ -n $x ]; then exit; fi"):
        assert unquoted(f"set -e\n{text}\n"), text
    quoted = ('rm "$1"', 'exec timedrun run "$@"', "x=$(cat y)", "x=$1", 'rm ${1:+--data-folder "$1"}', "exit $?")
    here = 'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'
    for text in (*quoted, here, "echo '$1' # it's $1", r"echo \$1", ': "${1:?usage: x}"'):
        assert not unquoted(f"set -e\n{text}\n"), text
