"""MLPerf Training v2.0, ruleset 2.0.0: the first round here, and the reference round for ResNet."""

from __future__ import annotations

from typing import Final

from mlevents import keys
from mlevents.rounds.constraint import within
from mlevents.rounds.image_benchmarks import MASKRCNN, RESNET, SSD, UNET3D
from mlevents.rounds.language_benchmarks import BERT, RNNT
from mlevents.rounds.recommendation_benchmarks import DLRM, MINIGO
from mlevents.rounds.ruleset import RequiredKey, Ruleset, named, once

# Source of names and occurrences: training_2.0.0/*.yaml of the compliance checker in mlperf-logging 4.1.68.
CHECKER: Final = "4.1.68"

# common.yaml. The system description's status has other words than the log's submission_status.
STATUS_WORDS: Final = ("cloud", "onprem", "preview", "research")

# common.yaml, key submission_division, and training_rules.adoc: 240 minutes open, 30 closed.
INIT_MINUTES: Final = {keys.OPEN: 240.0, keys.CLOSED: 30.0}

# common.yaml, both divisions, and submission_benchmark from open_common.yaml and closed_common.yaml.
REQUIRED: Final = (
    named(keys.SUBMISSION_BENCHMARK, "resnet", "ssd", "maskrcnn", "minigo", "dlrm", "bert", "rnnt", "unet3d"),
    named(keys.SUBMISSION_DIVISION, keys.CLOSED, keys.OPEN),
    RequiredKey(key=keys.SUBMISSION_ORG, filled=True),
    RequiredKey(key=keys.SUBMISSION_PLATFORM, filled=True),
    named(keys.SUBMISSION_STATUS, *STATUS_WORDS),
    RequiredKey(key=keys.CACHE_CLEAR, occurrence="at least one"),
    RequiredKey(key=keys.INIT_START, occurrence="at least one"),
    # Stricter than the checker, which only warns of repetitions: the score is taken from the last run_start.
    RequiredKey(key=keys.INIT_STOP, repeatable=False),
    RequiredKey(key=keys.RUN_START, repeatable=False),
    RequiredKey(key=keys.RUN_STOP, repeatable=False, metadata=(keys.STATUS,)),
    RequiredKey(
        key=keys.BLOCK_START,
        occurrence="at least one",
        alternative=keys.EPOCH_START,
        metadata=(keys.FIRST_EPOCH_NUM, keys.EPOCH_COUNT),
        metadata_values={keys.EPOCH_COUNT: within(above=0)},
    ),
    RequiredKey(
        key=keys.BLOCK_STOP, occurrence="at least one", alternative=keys.EPOCH_STOP, metadata=(keys.FIRST_EPOCH_NUM,)
    ),
    RequiredKey(
        key=keys.EPOCH_START, occurrence="at least one", alternative=keys.BLOCK_START, metadata=(keys.EPOCH_NUM,)
    ),
    RequiredKey(
        key=keys.EPOCH_STOP, occurrence="at least one", alternative=keys.BLOCK_STOP, metadata=(keys.EPOCH_NUM,)
    ),
    RequiredKey(
        key=keys.EVAL_START, occurrence="at least one", alternative=keys.BLOCK_START, metadata=(keys.EPOCH_NUM,)
    ),
    RequiredKey(key=keys.EVAL_STOP, occurrence="at least one", alternative=keys.BLOCK_STOP, metadata=(keys.EPOCH_NUM,)),
    RequiredKey(key=keys.EVAL_ACCURACY, occurrence="at least one", metadata=(keys.EPOCH_NUM,)),
    RequiredKey(key=keys.TRAIN_SAMPLES, filled=True),
    RequiredKey(key=keys.EVAL_SAMPLES, filled=True),
)

# closed_common.yaml.
CLOSED_REQUIRED: Final = (once(keys.GRADIENT_ACCUMULATION_STEPS, within(above=0)),)

RULESET: Final = Ruleset(
    name="2.0.0",
    round="v2.0",
    last_month="2022-05",
    checker=CHECKER,
    status_words=STATUS_WORDS,
    init_minutes=INIT_MINUTES,
    required=REQUIRED,
    closed_required=CLOSED_REQUIRED,
    benchmarks={rules.name: rules for rules in (RESNET, SSD, MASKRCNN, MINIGO, DLRM, BERT, RNNT, UNET3D)},
)
