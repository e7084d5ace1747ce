"""On synthetic logs of every round, benchmark and division the rules here refuse what MLCommons' checker refuses."""

import copy
import functools
import math
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from mlevents import keys
from mlevents.checks.check_context import CheckedRun
from mlevents.checks.log_check import check_record
from mlevents.checks.required_keys import check_required
from mlevents.event import Finding
from mlevents.mlcommons import _repaired
from mlevents.mlcommons.process import Workplace
from mlevents.rounds import MLPERF_RULESETS, RequiredKey, ruleset
from tests.mlevents.rounds import rule_files
from tests.mlevents.rounds.synthetic_logs import Case, Record, cases_of, log_of, record_of

PRESENCE = 3  # changes of a key itself, which `mutations` yields first
ODD_VALUES = (None, "", "x", True, 0, -1, 0.5, 3, 1e300, [], {})
# Whose targets, and whether they are numbers, other checks judge.
EVALUATIONS = (keys.EVAL_ACCURACY, "aggregated_eval_accuracy")
STRICTER = {"value-filled", "one-occurrence"}  # null for an empty text; a second init_stop, run_start or run_stop


@pytest.fixture(scope="module")
def repaired() -> Iterator[Path]:
    """MLCommons' checker with every declared defect repaired, as logs of those rounds are judged by."""
    with Workplace() as place:
        defects = [defect for rules in MLPERF_RULESETS.values() for defect in rules.defects]
        yield _repaired(place, defects) / "mlperf_logging" / "compliance_checker"


def required(name: str, records: list[Record]) -> list[Finding]:
    """The findings of the presence checks."""
    return check_required(CheckedRun(record_of(records), ruleset(name)))


def errors(findings: list[Finding]) -> set[str]:
    """The rules of the errors among findings."""
    return {finding.rule for finding in findings if finding.level == "error"}


@pytest.mark.parametrize("name", MLPERF_RULESETS)
def test_a_complete_log_is_accepted_by_both_except_for_declared_defects(name, repaired):
    for case in cases_of(name):
        records = log_of(*case)
        declared = {defect.rule for defect in ruleset(name).defects_of(*case[1:3])}
        found = [f for f in required(name, records) if f.level == "error" or f.rule == "upstream-defect"]
        assert {(f.level, f.message.split(":")[0]) for f in found} == {("note", defect) for defect in declared}, case
        with rule_files.checker_in(rule_files.CHECKER):
            assert rule_files.accepts(name, records) == (not declared), case
        with rule_files.checker_in(repaired):
            assert rule_files.accepts(name, records), case


def stated_in(entries: list[dict[str, Any]]) -> list[Any]:
    """Return the words and numbers in a key's rule files, and the numbers' neighbours."""
    text = str([value for name, value in entries[-1].items() if name.endswith("CHECK")] if entries else "")
    found = {float(number.replace("_", "")) for number in re.findall(r"\b\d[\d_]*(?:\.\d+)?(?:e-?\d+)?", text)}
    near = [number * factor for number in found for factor in (1, 1 + 1e-4, 1 - 1e-4)]
    return [*near, *sorted(set(re.findall(r"'([^'\[\]]+)'", text)))]


def mutations(records, rule, entries):
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

    yield "one bad", changed(at[:1], value="x")
    yield "twice, otherwise", [*records[: at[0] + 1], {**records[at[0]], "value": "other"}, *records[at[0] + 1 :]]
    value = records[at[-1]]["value"]
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    around = [value * 2, value / 2, value + 1, value * (1 + 1e-7)] if numeric else []
    stated = [] if key == keys.SUBMISSION_BENCHMARK else [*stated_in(entries), *(rule.vocabulary or ())]
    for odd in {repr(odd): odd for odd in (*ODD_VALUES, *around, *stated)}.values():
        yield f"{at} = {odd!r}", changed(at, value=odd)
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
    for field in metadata.keys() - {"file", "lineno"}:  # of the logging call, which no rule reads
        rest = {name: v for name, v in metadata.items() if name != field}
        yield f"without {field}", changed(at[-1:], metadata=rest)
        if field in counted:
            for number in (0, -1, 1, 10**9, metadata[field] + 64):
                yield f"{field} = {number}", changed(at[-1:], metadata={**rest, field: number})
            for other in (keys.EPOCH_NUM, keys.SAMPLES_COUNT, keys.STEP_NUM, keys.EPOCH_COUNT):
                yield f"{other} for {field}", changed(at[-1:], metadata={**rest, other: 64})


@functools.cache
def distinct_rules() -> dict[str, list[tuple[Case, RequiredKey, list[dict[str, Any]], bool]]]:
    """Each rule with its rule file's entries once, by the newest round that has it, whose logs are the shortest, and
    whether no rule before is the same but for its key, and for the one number that is allowed."""
    seen, forms = set(), set()
    rules = {}
    for name in reversed(MLPERF_RULESETS):
        for case in reversed(cases_of(name)):
            entries = rule_files.chain(*case)
            for rule in ruleset(name).keys_of(*case[1:]):
                text = re.sub(r"training_\d\.\d\.\d", "", str(entries.get(rule.key)))
                if (pair := f"{rule} {text}") not in seen:
                    form = pair.replace(rule.key, "")
                    if re.fullmatch(r"[\d.e-]+", "".join(one.words for one in rule.value)):
                        form = re.sub(r"\d[\d._e-]*", "N", form)  # a wrong number has a complete log refused
                    rules.setdefault(name, []).append((case, rule, entries.get(rule.key, []), form not in forms))
                    seen.add(pair)
                    forms.add(form)
    return rules


@pytest.mark.parametrize("name", MLPERF_RULESETS)
def test_every_change_of_a_key_is_refused_by_both_or_by_neither(name, repaired):
    disagreements = []
    with rule_files.checker_in(repaired):
        for case, rule, entries, is_new in distinct_rules().get(name, ()):
            records = log_of(*case)
            for what, changed in islice(mutations(records, rule, entries), None if is_new else PRESENCE):
                official, own = rule_files.accepts(name, changed), errors(required(name, changed))
                if not official and not own and rule.key in EVALUATIONS:
                    of_log, of_whole = (check_record(record_of(each), name) for each in (changed, records))
                    own = errors(of_log) - errors(of_whole)
                if rule.key == keys.WEIGHTS_INITIALIZATION and not own:
                    continue  # which tensors are named is left to MLCommons' checker
                if (official and own - STRICTER) or not (official or own):
                    disagreements.append((case, rule.key, what, official, own))
    assert not disagreements, f"{len(disagreements)}: {disagreements[:6]}"


BATCHES = (1, 8, 15, 16, 17, 100, 256, 512, 1000, 1152, 8192, 15360, 16384, 20000, 32768, 300000)
# About where the right value lies; each is tried with factors around it.
CENTRES = {
    ("5.0.0", "llama31_405b", keys.OPT_BASE_LR): lambda batch: batch * 8e-5 / 1152,
    ("5.1.0", "llama31_405b", keys.OPT_LR_DECAY_STEPS): lambda b: math.ceil(1.2e6 * 1152 / b) - math.ceil(9216000 / b),
    ("6.0.0", "deepseekv3_671b", keys.OPT_BASE_LR): lambda batch: 2.4e-5 * math.sqrt(batch / 16384),
    ("6.1.0", "flux1", "evaluation_frequency"): lambda batch: -(-262144 // batch) * batch,
    ("6.1.0", "qwen35_397b_grpo", keys.OPT_BASE_LR): lambda batch: 1e-6 * math.sqrt(batch / 256),
    ("6.1.0", "qwen35_397b_grpo", keys.OPT_GRADIENT_CLIP_NORM): lambda batch: 0.125 * math.sqrt(256 / batch),
    ("6.1.0", "dlrmv4", keys.OPT_BASE_LR): lambda batch: 1e-6 * batch / 8192,
    ("2.0.0", "maskrcnn", keys.OPT_BASE_LR): lambda batch: 0.02,
}
FACTORS = (0.25, 0.4999, 0.5, 0.5001, 1 / 3, 0.9, 1 - 1e-6, 1, 1 + 1e-6, 1.0001, 1.4999, 1.5, 1.5001, 1.55, 2, 3)


def state(name: str, benchmark: str, batch: int) -> dict[str, Any]:
    """What the rule file's expressions see after global_batch_size and the warm-up steps were read."""
    scope = {"math": math, "is_integer": lambda v: abs(round(v) - v) < 0.00001, "s": {}}
    for entry in rule_files.parsed((rule_files.CHECKER / f"training_{name}/closed_{benchmark}.yaml").read_text()):
        if "BEGIN" in entry:
            exec(entry["BEGIN"]["CODE"].strip(), scope)
    entries = rule_files.entries(name, f"closed_{benchmark}")
    for key in (keys.GLOBAL_BATCH_SIZE, keys.OPT_LR_WARMUP_STEPS):
        exec(entries.get(key, {}).get("POST", "").strip(), scope, {"v": {"value": batch}})
    return scope


@pytest.mark.parametrize(("name", "benchmark", "key"), CENTRES)
def test_values_that_depend_on_the_batch_are_judged_as_by_the_rule_file(name, benchmark, key):
    rule = next(r for r in ruleset(name).benchmarks[benchmark].closed_keys if r.key == key)
    (relation,) = rule.value
    check = rule_files.entries(name, f"closed_{benchmark}")[key]["CHECK"].strip()
    verdicts = set()
    for batch in BATCHES:
        centre, scope = CENTRES[name, benchmark, key](batch), state(name, benchmark, batch)
        for factor in FACTORS:
            for value in (centre * factor, round(centre * factor), centre * factor + 1e-9):
                theirs = bool(eval(check, scope, {"v": {"value": value}})) if value else False
                assert relation.holds(value, {keys.GLOBAL_BATCH_SIZE: batch}.get) == theirs or not value
                verdicts.add(theirs)
    assert verdicts == {True, False}


@pytest.mark.parametrize("benchmark", ["deepseekv3_671b", "qwen35_397b_grpo", "dlrmv4"])
def test_evaluation_points_are_those_of_the_rule_file_at_every_batch(benchmark):
    rule = next(r for r in ruleset("6.1.0").benchmarks[benchmark].closed_keys if r.points)
    first = {"qwen35_397b_grpo": "validation_start_samples", "dlrmv4": "first_eval_samples"}.get(benchmark)
    for batch in BATCHES:
        scope = state("6.1.0", benchmark, batch)
        if first:
            assert rule.points.first(batch) == scope["s"][first], batch
        else:
            check = rule_files.entries("6.1.0", f"closed_{benchmark}")[keys.EVAL_ACCURACY]["FIRST_CHECK"].strip()
            for at in (rule.points.first(batch) + step * batch for step in (-1, 0, 1)):
                theirs = eval(check, scope, {"v": {"metadata": {"samples_count": at}}})
                assert theirs == (at == rule.points.first(batch)), (batch, at)
        if benchmark == "dlrmv4":
            assert rule.points.every(batch) == scope["s"]["eval_interval_samples"], batch
