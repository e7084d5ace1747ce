"""Check systems/<system>.json: the keys that MLPerf requires and their values."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mlevents import keys
from mlevents.event import Finding, Level, depth, is_number, json_fault, short
from mlevents.package_checker.files import shown
from mlevents.rounds import RULESETS, Ruleset

# submission_rules.adoc, "<system_desc_id>.json metadata", and system_desc_checker.py of mlperf-logging 4.1.68. The
# table in the rules also lists host_network_card_count and system_type, which the checker does not require.
KEYS: Final = (
    *("submitter", "division", "status", "system_name", "number_of_nodes"),
    *("host_processors_per_node", "host_processor_model_name", "host_processor_core_count"),
    *("host_processor_vcpu_count", "host_processor_frequency", "host_processor_caches"),
    *("host_processor_interconnect", "host_memory_capacity", "host_storage_type", "host_storage_capacity"),
    *("host_networking", "host_networking_topology", "host_memory_configuration"),
    *("accelerators_per_node", "accelerator_model_name", "accelerator_host_interconnect"),
    *("accelerator_frequency", "accelerator_on-chip_memories", "accelerator_memory_configuration"),
    *("accelerator_memory_capacity", "accelerator_interconnect", "accelerator_interconnect_topology"),
    *("cooling", "hw_notes", "framework", "other_software_stack", "operating_system", "sw_notes"),
)
"""The keys that MLCommons' system description checker requires, in its order."""

OPTIONAL_KEYS: Final = frozenset(
    {
        *("host_processor_core_count", "host_processor_vcpu_count"),  # one of the two; see `unanswered`
        *("host_processor_frequency", "host_processor_caches", "host_processor_interconnect"),
        *("accelerator_frequency", "accelerator_on-chip_memories", "accelerator_interconnect_topology"),
        *("hw_notes", "sw_notes"),
    }
)
"""Keys that may be empty by MLPerf's submission rules."""

TEXT_KEYS: Final = (
    *("submitter", "system_name", "host_processor_model_name", "host_processor_core_count"),
    *("accelerator_model_name", "accelerators_per_node", "framework"),
)
"""Keys whose values system_desc_checker.py joins as strings: it aborts with a traceback on other types."""

COUNT_KEYS: Final = ("number_of_nodes", "host_processors_per_node", "accelerators_per_node")
"""Keys that result_summarizer.py converts to int: otherwise the system is missing in its table."""

LONGEST_FILE: Final = 1 << 20  # bytes; descriptions have a few thousand

_CORES, _VCPUS = "host_processor_core_count", "host_processor_vcpu_count"
_MOST_NODES: Final = 100_000
_MOST_PER_NODE: Final = 1024
_DIVISIONS: Final = (keys.CLOSED, keys.OPEN)
_NO_ANSWER: Final = ("", "-", "?", "??", "???", "tbd", "todo", "fixme", "xxx", "unknown", "null", "none given")


@dataclass(frozen=True)
class SystemDescription:
    """Content of a description: `values` by key, the line of each key, and findings about its form."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Finding, ...] = ()

    @property
    def readable(self) -> bool:
        """True if the file holds a JSON object."""
        return not any(finding.rule == "system-json" for finding in self.problems)

    def text(self, key: str) -> str | None:
        """Return the stripped value of `key` if it is a string, else None."""
        value = self.values.get(key)
        return value.strip() if isinstance(value, str) else None

    def finding(self, level: Level, rule: str, message: str, key: str | None = None) -> Finding:
        """Return a finding at the line of `key`."""
        line = self.lines.get(key) if key is not None else None
        return Finding(level=level, rule=rule, message=message, line=line, path=shown(self.path))


def unanswered(values: Mapping[str, Any]) -> list[str]:
    """Return the keys, in order, that require a meaningful answer by MLPerf's submission rules and lack one."""
    empty = {key for key in KEYS if _is_empty(values.get(key))}
    needed = empty - OPTIONAL_KEYS
    # submission_rules.adoc, footnote 1: one of the two is required, and none of a preview system.
    if {_CORES, _VCPUS} <= empty and str(values.get("status")).lower() != "preview":
        needed.add(_CORES)
    return sorted(needed, key=KEYS.index)


def read_description(path: Path) -> SystemDescription:
    """Read the description at `path`, whatever its bytes; defects are in `problems`. Raises nothing on content."""

    def unreadable(message: str, line: int | None = None) -> SystemDescription:
        finding = Finding(level="error", rule="system-json", message=message, line=line, path=shown(path))
        return SystemDescription(path, problems=(finding,))

    if not path.is_file():
        return unreadable("not a file; MLCommons' tools read systems/<system>.json for every folder in results/")
    try:
        with open(path, "rb") as file:
            raw = file.read(LONGEST_FILE + 1)
    except OSError as error:
        return unreadable(f"cannot be read ({error.strerror})")
    if len(raw) > LONGEST_FILE:
        return unreadable(f"larger than {LONGEST_FILE} bytes and not read; descriptions have a few thousand")
    try:
        text = raw.decode("utf-8")
        values = json.loads(text)
    except UnicodeDecodeError as error:
        return unreadable(f"invalid UTF-8 at byte {error.start}; save it as UTF-8")
    except (ValueError, RecursionError) as error:
        message = f"invalid JSON: {short(json_fault(error), 100)[1:-1]}; MLCommons' tools abort at such a file"
        return unreadable(message, getattr(error, "lineno", None))
    if not isinstance(values, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(values), "a single value")
        return unreadable(f"{kind}, not a JSON object with the {len(KEYS)} keys")
    lines, repeated = _key_lines(text)
    problems = []
    for key, line in repeated:
        said = f"duplicate key {short(key)[1:-1]}, of which the last one counts; delete one"
        problems.append(Finding(level="error", rule="system-repeated-key", message=said, line=line, path=shown(path)))
    return SystemDescription(path, values, lines, tuple(problems))


def description_findings(description: SystemDescription, rules: Ruleset) -> list[Finding]:
    """Return all findings about a system description under `rules`. Raises nothing on content."""
    findings = list(description.problems)
    if description.readable:
        findings += _status(description, rules)
        for check in (_missing_keys, _text_values, _counts, _division, _answers, _name):
            findings += check(description)
    return findings


def _missing_keys(system: SystemDescription) -> Iterator[Finding]:
    missing = [key for key in KEYS if key not in system.values]
    if missing:
        message = f"missing {', '.join(missing)}; all {len(KEYS)} keys are required, some may be empty"
        yield system.finding("error", "system-keys", message)


def _text_values(system: SystemDescription) -> Iterator[Finding]:
    for key in (key for key in KEYS if key in system.values):
        value = system.values[key]
        if key in TEXT_KEYS and not isinstance(value, str):
            message = f"{key} is {short(value)}; MLCommons' checker aborts unless it is a string: add quotes"
            yield system.finding("error", "system-text", message, key)
        elif key in TEXT_KEYS and any(character in value for character in "\r\n\0"):
            message = f"{key} contains a line break, which breaks MLCommons' table: write it on one line"
            yield system.finding("warning", "system-text", message, key)
        elif key == "other_software_stack" and isinstance(value, dict):
            if depth(value) > 1:
                yield system.finding("warning", "system-text", f"{key} is nested; write names and versions", key)
        elif not isinstance(value, str) and key not in ("division", "status"):
            message = f"{key} is {short(value)}; the rules require a string: add quotes"
            yield system.finding("warning", "system-text", message, key)


def _counts(system: SystemDescription) -> Iterator[Finding]:
    for key in (key for key in COUNT_KEYS if key in system.values):
        value = system.values[key]
        count = count_of(value)
        if count is None:
            message = f"{key} is {short(value)}; MLCommons' summary aborts unless it is an integer"
            yield system.finding("error", "system-count", message, key)
        elif count < (0 if key == "accelerators_per_node" else 1):
            yield system.finding("error", "system-count", f"{key} is {short(value)}, which is too few", key)
        elif count > (_MOST_NODES if key == "number_of_nodes" else _MOST_PER_NODE):
            yield system.finding("warning", "system-count", f"{key} is {short(value)}, which is implausible", key)
    accelerators = count_of(system.values.get("accelerators_per_node"))
    model = system.values.get("accelerator_model_name")
    named = not _is_empty(model) and str(model).strip().lower() not in ("n/a", "none", "not applicable")
    if accelerators == 0 and named:
        message = f"accelerators_per_node is 0, but accelerator_model_name is {short(model)}; correct one of them"
        yield system.finding("warning", "system-count", message, "accelerators_per_node")
    elif accelerators and not named and "accelerator_model_name" in system.values:
        message = f"{accelerators} accelerators per node, but no accelerator_model_name"
        yield system.finding("warning", "system-count", message, "accelerator_model_name")
    cores, vcpus = count_of(system.values.get(_CORES)), count_of(system.values.get(_VCPUS))
    if cores is not None and vcpus is not None and vcpus < cores:
        message = f"{_VCPUS} is {vcpus}, less than {_CORES}, {cores}; correct one of them"
        yield system.finding("warning", "system-count", message, _VCPUS)


def _division(system: SystemDescription) -> Iterator[Finding]:
    value = system.values.get("division")
    if "division" not in system.values or value in _DIVISIONS:
        return
    if isinstance(value, str) and value.strip().lower() in _DIVISIONS:
        message = (
            f"division is {short(value)}; MLCommons' tools check seeds and reference convergence only if it is "
            f"exactly 'closed': write {value.strip().lower()!r}"
        )
        yield system.finding("warning", "system-division", message, "division")
    else:
        message = f"division is {short(value)}, not one of {', '.join(_DIVISIONS)}"
        yield system.finding("error", "system-division", message, "division")


def _status(system: SystemDescription, rules: Ruleset) -> Iterator[Finding]:
    value = system.values.get("status")
    if "status" not in system.values:
        return
    if rules.system_status_words:
        if value not in rules.system_status_words:
            words = "; ".join(repr(word) for word in rules.system_status_words)
            message = f"status is {short(value)}, in {rules.round} not one of {words}"
            yield system.finding("error", "system-status", message, "status")
        return
    words_of = (rules.status_words + rules.system_status_words for rules in RULESETS.values())
    known = {word.lower() for words in words_of for word in words} | {"available", "rdi"}  # the rules' own examples
    if not isinstance(value, str) or value.strip().lower() not in known:
        message = f"status is {short(value)}, not in any round; write for example 'onprem', 'cloud' or 'research'"
        yield system.finding("warning", "system-status", message, "status")


def _answers(system: SystemDescription) -> Iterator[Finding]:
    open_keys = [key for key in unanswered(system.values) if key in system.values and key not in COUNT_KEYS]
    if open_keys:
        message = f"required fields without a meaningful value: {', '.join(open_keys)}"
        yield system.finding("warning", "system-answers", message, open_keys[0])


def _name(system: SystemDescription) -> Iterator[Finding]:
    name = system.values.get("system_name")
    if isinstance(name, str) and name != system.path.stem:
        message = (
            f"system_name is {short(name)}, but the file is {short(system.path.name)}; MLCommons' table shows the "
            "first and links to a file of that name: use one name"
        )
        yield system.finding("warning", "system-name", message, "system_name")


def count_of(value: object) -> int | None:
    """Return `value` as MLCommons' summary reads it if it is an integer, also 1.0, which Composer writes; else None."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*\+?[0-9]{1,9}\s*|\s*-[0-9]{1,9}\s*", value) else None
    return int(value) if is_number(value) and abs(value) < 1e9 and value == int(value) else None


def _is_empty(value: object) -> bool:
    return value.strip().lower() in _NO_ANSWER if isinstance(value, str) else value in (None, {}, [])


def _key_lines(text: str) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Return the line of each key of the outermost object of valid JSON, and the duplicate keys with their lines."""
    lines: dict[str, int] = {}
    repeated: list[tuple[str, int]] = []
    level, line = 0, 1
    for token in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]\n]', text):
        quoted, colon = token.groups()
        if quoted is None:
            level += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
            line += token[0] == "\n"
            continue
        if colon and level == 1:
            key = json.loads(quoted)
            if key in lines:
                repeated.append((key, line))
            lines[key] = line
        line += token[0].count("\n")
    return lines, repeated
