"""On synthetic logs of every round, benchmark and division the rules here refuse what MLCommons' checker refuses."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlevents import keys
from mlevents.checks.check_context import CheckedRun
from mlevents.checks.log_check import check_record
from mlevents.checks.required_keys import check_required
from mlevents.rounds import MLPERF_RULESETS, RequiredKey, ruleset
from tests.mlevents.rounds import rule_files
from tests.mlevents.rounds.synthetic_logs import Case, Record, cases_of, log_of, record_of

ODD_VALUES = (None, "", "x", True, 0, 1, -1, 0.5, 2, 3.7, 1e-9, 1e300, [], [1], [1, 2], {}, "closed")
# Whose targets, and whether they are numbers, other checks judge.
EVALUATIONS = (keys.EVAL_ACCURACY, "aggregated_eval_accuracy")
STRICTER = {"value-filled", "one-occurrence"}  # null for an empty text; a second init_stop, run_start or run_stop


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rule_files.repaired_checker(tmp_path_factory.mktemp("repaired"))


def errors(name: str, records: list[Record]) -> set[str]:
    """The rules of the errors of the presence checks."""
    run = CheckedRun(record_of(records), ruleset(name))
    return {finding.rule for finding in check_required(run) if finding.level == "error"}


def strict_errors(name: str, records: list[Record]) -> set[str]:
    """The rules of the errors of all strict checks of one log."""
    return {finding.rule for finding in check_record(record_of(records), name) if finding.level == "error"}


def notes(name: str, records: list[Record]) -> set[str]:
    run = CheckedRun(record_of(records), ruleset(name))
    found = [finding for finding in check_required(run) if finding.rule == "upstream-defect"]
    assert all(finding.level == "note" for finding in found)
    return {finding.message.split(":")[0] for finding in found}


@pytest.mark.parametrize("name", MLPERF_RULESETS)
def test_a_complete_log_is_accepted_by_both_except_for_declared_defects(name, repaired):
    for case in cases_of(name):
        records = log_of(*case)
        declared = {defect.rule for defect in ruleset(name).defects_of(*case[1:3])}
        assert errors(name, records) == set(), case
        assert notes(name, records) == declared, case
        with rule_files.checker_in(rule_files.CHECKER):
            assert rule_files.accepts(name, records) == (not declared), case
        with rule_files.checker_in(repaired):
            assert rule_files.accepts(name, records), case


def stated_in(entries: list[dict[str, Any]]) -> list[Any]:
    """Return the words and numbers in a key's rule files, and the numbers' neighbours."""
    text = str([value for name, value in entries[-1].items() if name.endswith("CHECK")] if entries else "")
    found = {float(number.replace("_", "")) for number in re.findall(r"\b\d[\d_]*(?:\.\d+)?(?:e-?\d+)?", text)}
    near = [value for number in found for value in (number, number * (1 + 1e-4), number * (1 - 1e-4), number * 2)]
    return [*near, *(int(number) for number in found), *sorted(set(re.findall(r"'([^'\[\]]+)'", text)))]


def mutations(
    records: list[Record], rule: RequiredKey, entries: list[dict[str, Any]]
) -> Iterator[tuple[str, list[Record]]]:
    key = keys.EVAL_ACCURACY if rule.joined else rule.key
    at = [index for index, record in enumerate(records) if record["key"] == key]
    if not at:  # what need not be logged is still checked where it is
        records = copy.deepcopy(records)
        records.insert(2, {**records[2], "key": key, "value": 1})
        at = [2]
    yield "removed", [record for record in records if record["key"] != key]
    yield "one removed", [record for index, record in enumerate(records) if index != at[-1]]
    yield "twice", [*records[: at[0] + 1], *records[at[0] :]]

    def changed(indices: list[int], **fields: Any) -> list[Record]:
        new = list(records)
        for index in indices:
            new[index] = {**new[index], **fields}
        return new

    yield "twice, otherwise", [*records[: at[0] + 1], {**records[at[0]], "value": "other"}, *records[at[0] + 1 :]]
    value = records[at[-1]]["value"]
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    around = [value * 2, value / 2, value * 1.5, value + 1, value * (1 + 1e-7), float(value)] if numeric else []
    stated = [] if key == keys.SUBMISSION_BENCHMARK else [*stated_in(entries), *(rule.vocabulary or ())]
    for odd in (*ODD_VALUES, *around, *stated):
        for indices in (at, at[:1]) if len(at) > 1 else (at,):
            yield f"{indices} = {odd!r}", changed(indices, value=odd)
        if isinstance(value, dict):
            for part in value:
                yield f"{part} = {odd!r}", changed(at, value={**value, part: odd})
    if isinstance(value, dict):
        for part in value:
            yield f"without {part}", changed(at[:1], value={name: v for name, v in value.items() if name != part})
    metadata = records[at[-1]]["metadata"]
    counted = {keys.EPOCH_NUM, keys.SAMPLES_COUNT, keys.STEP_NUM, keys.EPOCH_COUNT, keys.FIRST_EPOCH_NUM}
    for indices in (at, at[-1:]):
        yield f"{indices} bare", changed(indices, metadata={})
    for field in metadata:
        rest = {name: v for name, v in metadata.items() if name != field}
        yield f"without {field}", changed(at[-1:], metadata=rest)
        if field in counted:
            for number in (0, -1, 1, 10**9, metadata[field] + 64):
                yield f"{field} = {number}", changed(at[-1:], metadata={**rest, field: number})
            for other in (keys.EPOCH_NUM, keys.SAMPLES_COUNT, keys.STEP_NUM, keys.EPOCH_COUNT):
                yield f"{other} for {field}", changed(at[-1:], metadata={**rest, other: 64})


def distinct_rules() -> dict[str, list[tuple[Case, RequiredKey, list[dict[str, Any]]]]]:
    """Each rule with its rule file's entries once, by the newest round that has it, whose logs are the shortest."""
    seen: set[str] = set()
    rules: dict[str, list[tuple[Case, RequiredKey, list[dict[str, Any]]]]] = {}
    for name in reversed(MLPERF_RULESETS):
        for case in reversed(cases_of(name)):
            entries = rule_files.chain(*case)
            for rule in ruleset(name).keys_of(*case[1:]):
                text = re.sub(r"training_\d\.\d\.\d", "", str(entries.get(rule.key)))
                if (pair := f"{rule} {text}") not in seen:
                    seen.add(pair)
                    rules.setdefault(name, []).append((case, rule, entries.get(rule.key, [])))
    return rules


DISTINCT = distinct_rules()


@pytest.mark.parametrize("name", DISTINCT)
def test_every_change_of_a_key_is_refused_by_both_or_by_neither(name, repaired):
    disagreements = []
    with rule_files.checker_in(repaired):
        for case, rule, entries in DISTINCT[name]:
            records = log_of(*case)
            for what, changed in mutations(records, rule, entries):
                official, own = rule_files.accepts(name, changed), errors(name, changed)
                if not official and not own and rule.key in EVALUATIONS:
                    own = strict_errors(name, changed) - strict_errors(name, records)
                if rule.key == keys.WEIGHTS_INITIALIZATION and not own:
                    continue  # which tensors are named is left to MLCommons' checker
                if (official and own - STRICTER) or not (official or own):
                    disagreements.append((case, rule.key, what, official, own))
    assert not disagreements, f"{len(disagreements)}: {disagreements[:6]}"
