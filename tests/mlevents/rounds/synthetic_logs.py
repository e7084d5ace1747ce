"""A complete log of any benchmark, division and round, made from the project's own data."""

import ast
import re
from pathlib import Path
from typing import Any

from mlevents import keys
from mlevents.event import Event
from mlevents.record import RunRecord
from mlevents.rounds import RequiredKey, ruleset
from mlevents.runlog.trainer_run import COURSE
from tests.mlevents.conftest import event
from tests.mlevents.rounds import rule_files

Record = dict[str, Any]
START_MS = 1_700_000_000_000

# Worked out by hand from the rule files' formulas, for one batch each.
BATCH = {"llama31_405b": 1152, "deepseekv3_671b": 16384, "qwen35_397b_grpo": 256, "dlrmv4": 8192, "maskrcnn": 16}
FIRST_SAMPLES = {
    "deepseekv3_671b": 43 * 16384,  # FLOOR(42 + 24576 / 16384) = 43
    "qwen35_397b_grpo": 18 * 256,  # CEIL(2.5 + 3840 / 256) = 18
    "dlrmv4": 25 * 280 * 8192,  # "block 25 at global batch 8192", blocks of CEIL(2290835.423 / 8192) = 280 steps
}
STEP_SAMPLES = {"dlrmv4": 280 * 8192}
VALUES = {
    ("llama31_405b", keys.OPT_BASE_LR): 8e-5,
    ("llama31_405b", keys.OPT_LR_DECAY_STEPS): 1_200_000 - 8000,
    ("llama31_8b", keys.OPT_LR_DECAY_STEPS): 1_199_900,
    ("gpt_oss_20b", keys.OPT_LR_DECAY_STEPS): 1_199_900,
    ("deepseekv3_671b", keys.OPT_BASE_LR): 2.4e-5,
    ("deepseekv3_671b", keys.OPT_LR_DECAY_STEPS): 11_996,
    ("qwen35_397b_grpo", keys.OPT_BASE_LR): 1e-6,
    ("qwen35_397b_grpo", keys.OPT_GRADIENT_CLIP_NORM): 0.125,
    ("qwen35_397b_grpo", "num_prompts_per_step"): 16,
    ("dlrmv4", keys.OPT_BASE_LR): 1e-6,
    ("dlrmv4", "opt_sparse_base_learning_rate"): 1e-6,
    ("maskrcnn", keys.OPT_BASE_LR): 0.02,
    ("flux1", "evaluation_frequency"): 262_144,
    ("rnnt", "data_train_num_buckets"): 6,
}
# What other keys are compared with, so it stands first.
FIRST = (keys.GLOBAL_BATCH_SIZE, keys.OPT_LR_WARMUP_STEPS, keys.OPT_BASE_LR, "num_prompts_per_step")
NOT_SETTINGS = COURSE | {keys.CACHE_CLEAR, keys.WEIGHTS_INITIALIZATION}
CANDIDATES = (100, 1, 0, 0.0, 0.5, 0.001, 0.0001, 2, 16, 1000.0, [1, 2], True, "x", 1e-8, 8192, 15360)


Case = tuple[str, str, str, str | None]  # ruleset, benchmark, division, optimizer


def cases_of(name: str) -> list[Case]:
    """Every benchmark, division and optimizer of the ruleset `name`."""
    return [
        (name, benchmark, division, optimizer)
        for benchmark, own in ruleset(name).benchmarks.items()
        for division in (keys.OPEN, keys.CLOSED)
        for optimizer in ((own.closed_optimizer_keys or {None: ()}) if division == keys.CLOSED else (None,))
    ]


def log_of(name: str, benchmark: str, division: str, optimizer: str | None = None) -> list[Record]:
    """The records of a run of two evaluations, the second of which reaches the target."""
    rules = ruleset(name)
    own = rules.benchmarks[benchmark]
    required = {rule.key: rule for rule in rules.keys_of(benchmark, division, optimizer)}
    records = []
    clock = START_MS

    def add(key: str, value: object = None, **metadata: object) -> None:
        nonlocal clock
        clock += 1_000
        records.append(event(clock, key, value, lineno=1, **metadata))

    named = {
        keys.SUBMISSION_BENCHMARK: benchmark,
        keys.SUBMISSION_DIVISION: division,
        keys.SUBMISSION_ORG: "Nobody",
        keys.SUBMISSION_PLATFORM: "laptop",
        keys.GLOBAL_BATCH_SIZE: BATCH.get(benchmark, 64),
        keys.OPT_NAME: optimizer,
        keys.SEED: 1,
        **{key: least for key, (least, _) in own.samples.items()},
    }
    add(keys.INIT_START)
    add(keys.SUBMISSION_BENCHMARK, benchmark)
    add(keys.SUBMISSION_DIVISION, division)
    add(keys.CACHE_CLEAR, True)
    add(keys.SEED, 1)
    ordered = sorted(required.values(), key=lambda rule: FIRST.index(rule.key) if rule.key in FIRST else len(FIRST))
    for rule in ordered:
        if rule.key in NOT_SETTINGS or any(record["key"] == rule.key for record in records):
            continue
        value = named.get(rule.key)
        add(rule.key, value_for(rule, benchmark, records) if value is None else value)
    if keys.WEIGHTS_INITIALIZATION in required:
        for tensor in rule_files.tensors(name, benchmark):
            add(keys.WEIGHTS_INITIALIZATION, tensor=tensor)
    add(keys.INIT_STOP)
    add(keys.RUN_START)
    in_epochs = own.progress == keys.EPOCH_NUM
    first = FIRST_SAMPLES.get(benchmark, 0 if in_epochs else 64)
    step = 1 if in_epochs else STEP_SAMPLES.get(benchmark, BATCH.get(benchmark, 64))
    for number, reaches in enumerate((False, True)):
        at = {own.progress: number + 1 if in_epochs else first + number * step}
        block = {keys.FIRST_EPOCH_NUM: number + 1, keys.EPOCH_COUNT: 1} if in_epochs else at
        add(keys.BLOCK_START, **block)
        add(keys.EPOCH_START, epoch_num=number + 1)
        add(keys.EPOCH_STOP, epoch_num=number + 1)
        add(keys.EVAL_START, **at)
        evaluations(add, own, reaches, at)
        if "averaged_validation_loss" in required:
            add("averaged_validation_loss", 0.58, **at)
        add(keys.EVAL_STOP, **at)
        add(keys.BLOCK_STOP, **block)
    add(keys.RUN_STOP, status="success")
    return records


def evaluations(add: Any, own: Any, reaches: bool, at: dict[str, float]) -> None:
    far = {">=": 0.1, "<=": 100.0 if own.parts else 0.5 if own.name == "rnnt" else 7.0}
    if not own.parts:
        near = own.target + 0.001 if own.direction == ">=" else own.target - 0.001
        missed = min(far[own.direction], 0.99) if own.target < 1 else far["<="]
        add(keys.EVAL_ACCURACY, near if reaches else missed, **at)
        return
    values = {name: part.target if reaches else far[part.direction] for name, part in own.parts.items()}
    if own.parts_in_one_event:
        add(keys.EVAL_ACCURACY, values, **at)
    else:
        for name, value in values.items():
            add(keys.EVAL_ACCURACY, value, metric=name, **at)


def value_for(rule: RequiredKey, benchmark: str, records: list[Record]) -> Any:
    """A value that `rule` allows."""
    if (benchmark, rule.key) in VALUES:
        return VALUES[benchmark, rule.key]
    if rule.vocabulary:
        return rule.vocabulary[0]
    before = {record["key"]: record["value"] for record in records}
    exact = [re.fullmatch(r"([\d.e-]+|True)(?: or .*)?", one.words) for one in rule.value]
    fixed = [ast.literal_eval(words[1]) for words in exact if words]
    for value in (*fixed, *CANDIDATES):
        if all(constraint.holds(value, before.get) for constraint in rule.value):
            return value
    raise AssertionError(f"no value found for {rule}")


def record_of(records: list[Record]) -> RunRecord:
    """What reading the log gives, without a file."""
    names = ("time_ms", "event_type", "key", "value", "metadata")
    events = [Event(line, *(record[name] for name in names)) for line, record in enumerate(records, start=1)]
    return RunRecord(Path("result_0.txt"), tuple(events), (), "")
