"""System descriptions of the runs of a set: checked against their logs and compared with each other."""

import json
from pathlib import Path
from typing import Any, Final

from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.event import json_fault
from mlevents.package_checker.system_description import KEYS
from timedrun.evidence.submission.packaging.safe_files import PackageError

STATUS_WORDS: Final = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "research": "Research, Development, or Internal (RDI)",
    "preview": "Preview",
}
"""A log's submission_status as spelt in system descriptions since round 4.0 (system_desc_checker.py)."""


def json_object(path: Path, contents: dict[Path, bytes]) -> dict[str, Any]:
    """Parse the JSON object in `contents[path]`; raise PackageError if it is not one."""
    try:
        values = json.loads(contents[path])
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{path}: cannot be read as JSON ({json_fault(error)}).") from None
    if not isinstance(values, dict):
        raise PackageError(f"{path}: not a JSON object.")
    return values


def agreed_description(path: Path, logged: dict[str, Any], contents: dict[Path, bytes]) -> dict[str, Any]:
    """Return the system description in `path`, in MLPerf's keys and order. Raise PackageError if it contradicts the
    logs, lacks a key or holds a value that is not text: MLCommons' checker does not compare it with the logs
    (mlcommons/logging issue 241) and crashes on values that are not text."""
    description = json_object(path, contents)
    for key in KEYS:
        if key not in description:
            raise PackageError(f"{path}: lacks {key}, which MLPerf's system description requires (it may be empty).")
        value = description[key]
        nested = key == "other_software_stack" and isinstance(value, dict)
        if not all(isinstance(text, str) for text in (value.values() if nested else [value])):
            raise PackageError(f"{path}: {key} is {value!r}, not text.")
    for key, log_key in (
        ("submitter", keys.SUBMISSION_ORG),
        ("system_name", keys.SUBMISSION_PLATFORM),
        ("division", keys.SUBMISSION_DIVISION),
        ("status", keys.SUBMISSION_STATUS),
    ):
        accepted = (logged[log_key], STATUS_WORDS.get(str(logged[log_key]))) if key == "status" else (logged[log_key],)
        if description[key] not in accepted:
            raise PackageError(f"{path}: {key} is {description[key]!r}, but logs say {log_key} {logged[log_key]!r}.")
    return {key: description[key] for key in KEYS}


def differences(paths: list[ResultPaths], descriptions: list[dict[str, Any]], contents: dict[Path, bytes]) -> list[str]:
    """Return notes on runs of a set whose system or environment differs from the first run's."""
    notes = []
    for run, description in zip(paths, descriptions, strict=True):
        changed = [key for key in KEYS if description[key] != descriptions[0][key]]
        if changed:
            notes.append(f"{run.system}: differs from run {paths[0].number} in {', '.join(changed)}.")
        if contents[run.environment] != contents[paths[0].environment]:
            notes.append(f"{run.environment}: differs from run {paths[0].number}; both are packaged.")
    return notes
