"""MLPerf Training v2.0, ruleset 2.0.0: what ResNet-50 and BERT-Large logs must hold. The reference round for ResNet."""

from __future__ import annotations

from typing import Final

from mlevents import keys
from mlevents.rounds.ruleset import BenchmarkRules, EvaluationInterval, RequiredKey, Ruleset

# Source of names and occurrences: training_2.0.0/*.yaml of the compliance checker in mlperf-logging 4.1.68.
CHECKER: Final = "4.1.68"

# common.yaml. The words of the log's submission_status are not those of the system description's status.
STATUS_WORDS: Final = ("cloud", "onprem", "preview", "research")

# common.yaml, key submission_division, and training_rules.adoc: 240 minutes open, 30 closed.
INIT_MINUTES: Final = {keys.OPEN: 240.0, keys.CLOSED: 30.0}

# open_common.yaml and closed_common.yaml.
BENCHMARK_WORDS: Final = ("resnet", "ssd", "maskrcnn", "minigo", "dlrm", "bert", "rnnt", "unet3d")

# common.yaml, both divisions, and submission_benchmark from the two *_common.yaml.
REQUIRED: Final = (
    RequiredKey(key=keys.SUBMISSION_BENCHMARK, vocabulary=BENCHMARK_WORDS),
    RequiredKey(key=keys.SUBMISSION_DIVISION, vocabulary=(keys.CLOSED, keys.OPEN)),
    RequiredKey(key=keys.SUBMISSION_ORG, filled=True),
    RequiredKey(key=keys.SUBMISSION_PLATFORM, filled=True),
    RequiredKey(key=keys.SUBMISSION_STATUS, vocabulary=STATUS_WORDS),
    RequiredKey(key=keys.CACHE_CLEAR, occurrence="at least one"),
    RequiredKey(key=keys.INIT_START, occurrence="at least one"),
    # Stricter than the checker, which only warns of a second one: the score is taken from the last run_start.
    RequiredKey(key=keys.INIT_STOP, repeatable=False),
    RequiredKey(key=keys.RUN_START, repeatable=False),
    RequiredKey(key=keys.RUN_STOP, repeatable=False, metadata=(keys.STATUS,)),
    RequiredKey(
        key=keys.BLOCK_START,
        occurrence="at least one",
        alternative=keys.EPOCH_START,
        metadata=(keys.FIRST_EPOCH_NUM, keys.EPOCH_COUNT),
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
CLOSED_REQUIRED: Final = (RequiredKey(key=keys.GRADIENT_ACCUMULATION_STEPS),)

RESNET: Final = BenchmarkRules(
    name=keys.RESNET,
    dataset="imagenet",
    metric="top-1 accuracy",
    target=0.759,  # training_rules.adoc, table of benchmarks: 75.90 % classification
    direction=">=",
    runs=5,  # training_rules.adoc, "benchmark results"; mlperf_logging.benchmark_meta
    unit="epoch",  # training_rules.adoc, epoch reporting
    evaluation_interval=EvaluationInterval(constant=4),  # every 4 epochs, first one free between 0 and 3
    # closed_resnet.yaml; its list of 161 weight tensors is left to MLCommons' checker.
    closed_keys=(
        RequiredKey(key=keys.WEIGHTS_INITIALIZATION, occurrence="at least one", metadata=("tensor",)),
        RequiredKey(key=keys.GLOBAL_BATCH_SIZE),
        RequiredKey(key=keys.OPT_NAME, vocabulary=("sgd", "lars")),
    ),
    # closed_resnet_lars.yaml and closed_resnet_sgd.yaml. mlperf-logging has no constants for the sgd_ names.
    closed_optimizer_keys={
        "lars": tuple(
            RequiredKey(key=key)
            for key in (
                keys.LARS_OPT_BASE_LEARNING_RATE,
                keys.LARS_OPT_END_LR,
                keys.LARS_OPT_LR_DECAY_POLY_POWER,
                keys.LARS_OPT_LR_DECAY_STEPS,
                keys.LARS_EPSILON,
                keys.LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS,
                keys.LARS_OPT_MOMENTUM,
                keys.LARS_OPT_WEIGHT_DECAY,
            )
        ),
        "sgd": tuple(
            RequiredKey(key=key)
            for key in (
                "sgd_opt_base_learning_rate",
                "sgd_opt_end_learning_rate",
                "sgd_opt_learning_rate_decay_poly_power",
                "sgd_opt_learning_rate_decay_steps",
                "sgd_opt_weight_decay",
                "sgd_opt_momentum",
                keys.MODEL_BN_SPAN,
                keys.OPT_LR_WARMUP_EPOCHS,
            )
        ),
    },
)

# closed_bert.yaml of 2.0.0; its list of 398 weight tensors is left to MLCommons' checker.
BERT_CLOSED_KEYS: Final = tuple(
    RequiredKey(key=key)
    for key in (
        keys.GLOBAL_BATCH_SIZE,
        keys.OPT_BASE_LR,
        "opt_epsilon",  # renamed to opt_lamb_epsilon in 2.1.0
        keys.OPT_LR_TRAINING_STEPS,
        keys.OPT_LR_WARMUP_STEPS,
        keys.NUM_WARMUP_STEPS,
        keys.START_WARMUP_STEP,
        keys.OPT_LAMB_BETA_1,
        keys.OPT_LAMB_BETA_2,
        keys.OPT_LAMB_WEIGHT_DECAY,
    )
) + (RequiredKey(key=keys.WEIGHTS_INITIALIZATION, occurrence="at least one", metadata=("tensor",)),)

BERT: Final = BenchmarkRules(
    name=keys.BERT,
    dataset="wikipedia",
    metric="masked language model accuracy",
    target=0.720,  # training_rules.adoc, table of benchmarks: 0.720 Mask-LM accuracy
    direction=">=",
    runs=10,  # training_rules.adoc, "benchmark results"; mlperf_logging.benchmark_meta
    unit="samples",  # training_rules.adoc, epoch reporting: training samples, as an integer, in epoch_num
    # training_rules.adoc: FLOOR(0.05 * (230.23 * global batch + 3,000,000), 25,000) samples; 150,000 at a batch of 448.
    evaluation_interval=EvaluationInterval(constant=0.05 * 3_000_000, per_batch=0.05 * 230.23, multiple=25_000),
    closed_keys=BERT_CLOSED_KEYS,
)

RULESET: Final = Ruleset(
    name="2.0.0",
    round="v2.0",
    checker=CHECKER,
    status_words=STATUS_WORDS,
    init_minutes=INIT_MINUTES,
    required=REQUIRED,
    closed_required=CLOSED_REQUIRED,
    benchmarks={keys.RESNET: RESNET, keys.BERT: BERT},
)
