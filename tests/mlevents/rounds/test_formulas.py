"""Relations to the batch size hold, for every batch, as the expressions of the rule files have it."""

import math
from typing import Any

import pytest

from mlevents import keys
from mlevents.rounds import ruleset
from tests.mlevents.rounds import rule_files

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
    scope: dict[str, Any] = {"math": math, "is_integer": lambda v: abs(round(v) - v) < 0.00001, "s": {}}
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
