"""A person's answers for the fields of MLPerf's system description that cannot be detected."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError, nearest
from judging.ground.file_kind import read_text
from judging.ground.result_files import write_json
from mlevents.event import json_fault
from mlevents.package_checker.system_description import KEYS, OPTIONAL_KEYS, unanswered

OVERRIDE: Final = "override"
SET_BY_RUNS: Final = ("submitter", "division", "status", "system_name")
"""Keys that are set by a run's config and log; an answer can only agree with them."""

LARGEST: Final = 1 << 20
"""Maximum bytes of an answers file."""

QUESTIONS: Final = tuple(key for key in KEYS if key not in SET_BY_RUNS)
"""Keys that a person can answer; MLCommons' system_desc_id.json explains them."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Content of an answers file: `given` fills empty values, `override` replaces detected ones."""

    path: Path
    given: Mapping[str, str]
    override: Mapping[str, str]

    def applied(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Return `description` with the answers, its keys in their order. Raise UsageError, which lists them all, if
        answers that are not under "override" contradict detected values."""
        contradictions = [
            f"{key} was detected as {description[key]!r}, but the answer is {answer!r}"
            for key, answer in self.given.items()
            if description.get(key) and description[key] != answer
        ]
        if contradictions:
            raise UsageError(
                f"{self.path}: {'; '.join(contradictions)}. Remove the answer, or move it to "
                f'"{OVERRIDE}" if the detected value is wrong.'
            )
        return {**description, **self.given, **self.override}


def read_answers(path: Path) -> Answers:
    """Read the answers in the JSON file `path`: text by key, "" for an open question; "override" holds answers that
    replace detected values. Raise UsageError, which lists all invalid keys and answers, or names an unreadable file."""
    try:
        content = json.loads(read_text(path, LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: cannot be read as JSON ({json_fault(error)}); `timedrun doctor --system --answers FILE` writes"
            " a file to fill in."
        ) from None
    if not isinstance(content, dict) or not isinstance(override := content.pop(OVERRIDE, {}), dict):
        raise UsageError(f'{path}: the file or its "{OVERRIDE}" is not a JSON object of keys and answers.')
    fixed = [f"{key} is set by the runs' logs and cannot be replaced" for key in SET_BY_RUNS if key in override]
    both = [f"{key} is answered twice" for key in content if content[key] and override.get(key)]
    if problems := [*_problems(content), *_problems(override), *fixed, *both]:
        raise UsageError(f"{path}: {'; '.join(problems)}; no answers were used.")
    return Answers(
        path=path,
        given={key: answer for key, answer in content.items() if answer},
        override={key: answer for key, answer in override.items() if answer},
    )


def open_keys(description: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the unanswered keys that MLPerf requires, and the optional ones."""
    needed = [key for key in unanswered(description) if key not in SET_BY_RUNS]
    other: list[str] = [key for key in KEYS if key in OPTIONAL_KEYS and key not in needed and not description.get(key)]
    return needed, other


def write_questions(path: Path, description: Mapping[str, Any]) -> None:
    """Write an answers file with every open key of `description`, required ones first, each with "". Raise UsageError
    if `path` exists, and so may hold answers."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} already exists and was not overwritten; choose a new file.")
    needed, other = open_keys(description)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dict.fromkeys([*needed, *other], ""))


def _problems(answers: Mapping[str, Any]) -> Iterator[str]:
    for key, answer in answers.items():
        if key not in QUESTIONS and key not in SET_BY_RUNS:
            yield f"a system description has no key {key!r}{nearest(key, QUESTIONS).replace(' Did', '; did')}"
        elif not isinstance(answer, str):
            yield f"{key} is {answer!r}, not text: put it in quotes"
        elif not answer.isprintable():  # "" is printable
            yield f"{key} contains a line break or a control character"
