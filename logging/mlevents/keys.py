"""The keys of an MLPerf training log, taken from MLCommons' own list, and the few this project adds."""

from __future__ import annotations

from typing import Final

from mlperf_logging.mllog import constants

# Event types.
INTERVAL_START: Final[str] = constants.INTERVAL_START
INTERVAL_END: Final[str] = constants.INTERVAL_END
POINT_IN_TIME: Final[str] = constants.POINT_IN_TIME

# Who submits what.
SUBMISSION_BENCHMARK: Final[str] = constants.SUBMISSION_BENCHMARK
SUBMISSION_DIVISION: Final[str] = constants.SUBMISSION_DIVISION
SUBMISSION_ORG: Final[str] = constants.SUBMISSION_ORG
SUBMISSION_PLATFORM: Final[str] = constants.SUBMISSION_PLATFORM
SUBMISSION_STATUS: Final[str] = constants.SUBMISSION_STATUS
SUBMISSION_POC_NAME: Final[str] = constants.SUBMISSION_POC_NAME
SUBMISSION_POC_EMAIL: Final[str] = constants.SUBMISSION_POC_EMAIL

# The course of a run.
CACHE_CLEAR: Final[str] = constants.CACHE_CLEAR
INIT_START: Final[str] = constants.INIT_START
INIT_STOP: Final[str] = constants.INIT_STOP
RUN_START: Final[str] = constants.RUN_START
RUN_STOP: Final[str] = constants.RUN_STOP
BLOCK_START: Final[str] = constants.BLOCK_START
BLOCK_STOP: Final[str] = constants.BLOCK_STOP
EPOCH_START: Final[str] = constants.EPOCH_START
EPOCH_STOP: Final[str] = constants.EPOCH_STOP
EVAL_START: Final[str] = constants.EVAL_START
EVAL_STOP: Final[str] = constants.EVAL_STOP
EVAL_ACCURACY: Final[str] = constants.EVAL_ACCURACY

# Names inside `metadata`, and the two words of a finished run.
EPOCH_NUM: Final[str] = constants.EPOCH_NUM
EPOCH_COUNT: Final[str] = constants.EPOCH_COUNT
FIRST_EPOCH_NUM: Final[str] = constants.FIRST_EPOCH_NUM
SAMPLES_COUNT: Final[str] = constants.SAMPLES_COUNT
STATUS: Final[str] = constants.STATUS
SUCCESS: Final[str] = constants.SUCCESS
ABORTED: Final[str] = constants.ABORTED

# Divisions and benchmarks.
OPEN: Final[str] = constants.OPEN
CLOSED: Final[str] = constants.CLOSED
RESNET: Final[str] = constants.RESNET
BERT: Final[str] = constants.BERT

# Facts and hyper-parameters of a run.
SEED: Final[str] = constants.SEED
TRAIN_SAMPLES: Final[str] = constants.TRAIN_SAMPLES
EVAL_SAMPLES: Final[str] = constants.EVAL_SAMPLES
TRAINED_SAMPLES: Final[str] = constants.TRAINED_SAMPLES
GLOBAL_BATCH_SIZE: Final[str] = constants.GLOBAL_BATCH_SIZE
GRADIENT_ACCUMULATION_STEPS: Final[str] = constants.GRADIENT_ACCUMULATION_STEPS
MICRO_BATCH_SIZE: Final[str] = constants.MICRO_BATCH_SIZE
WEIGHTS_INITIALIZATION: Final[str] = constants.WEIGHTS_INITIALIZATION
MAX_SEQUENCE_LENGTH: Final[str] = constants.MAX_SEQUENCE_LENGTH
MAX_STEPS: Final[str] = constants.MAX_STEPS
MODEL_BN_SPAN: Final[str] = constants.MODEL_BN_SPAN
NUM_WARMUP_STEPS: Final[str] = constants.NUM_WARMUP_STEPS
START_WARMUP_STEP: Final[str] = constants.START_WARMUP_STEP
OPT_NAME: Final[str] = constants.OPT_NAME
OPT_BASE_LR: Final[str] = constants.OPT_BASE_LR
OPT_END_LR: Final[str] = constants.OPT_END_LR
OPT_WEIGHT_DECAY: Final[str] = constants.OPT_WEIGHT_DECAY
OPT_GRADIENT_CLIP_NORM: Final[str] = constants.OPT_GRADIENT_CLIP_NORM
OPT_LR_WARMUP_EPOCHS: Final[str] = constants.OPT_LR_WARMUP_EPOCHS
OPT_LR_WARMUP_STEPS: Final[str] = constants.OPT_LR_WARMUP_STEPS
OPT_LR_TRAINING_STEPS: Final[str] = constants.OPT_LR_TRAINING_STEPS
OPT_LR_DECAY_STEPS: Final[str] = constants.OPT_LR_DECAY_STEPS
OPT_LR_DECAY_SCHEDULE: Final[str] = constants.OPT_LR_DECAY_SCHEDULE
OPT_ADAMW_BETA_1: Final[str] = constants.OPT_ADAMW_BETA_1
OPT_ADAMW_BETA_2: Final[str] = constants.OPT_ADAMW_BETA_2
OPT_ADAMW_EPSILON: Final[str] = constants.OPT_ADAMW_EPSILON
OPT_ADAMW_WEIGHT_DECAY: Final[str] = constants.OPT_ADAMW_WEIGHT_DECAY
OPT_LAMB_BETA_1: Final[str] = constants.OPT_LAMB_BETA_1
OPT_LAMB_BETA_2: Final[str] = constants.OPT_LAMB_BETA_2
OPT_LAMB_EPSILON: Final[str] = constants.OPT_LAMB_EPSILON
OPT_LAMB_WEIGHT_DECAY: Final[str] = constants.OPT_LAMB_WEIGHT_DECAY
LARS_EPSILON: Final[str] = constants.LARS_EPSILON
LARS_OPT_BASE_LEARNING_RATE: Final[str] = constants.LARS_OPT_BASE_LEARNING_RATE
LARS_OPT_END_LR: Final[str] = constants.LARS_OPT_END_LR
LARS_OPT_LR_DECAY_POLY_POWER: Final[str] = constants.LARS_OPT_LR_DECAY_POLY_POWER
LARS_OPT_LR_DECAY_STEPS: Final[str] = constants.LARS_OPT_LR_DECAY_STEPS
LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS: Final[str] = constants.LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS
LARS_OPT_MOMENTUM: Final[str] = constants.LARS_OPT_MOMENTUM
LARS_OPT_WEIGHT_DECAY: Final[str] = constants.LARS_OPT_WEIGHT_DECAY

# This project's own. MLCommons' checkers skip keys they do not know, so such a log stays a valid MLPerf log.
DATASET: Final = "dataset"  # what was trained on; differs from the benchmark's own in a demonstration
QUALITY_TARGET: Final = "quality_target"  # the target this run trained to
CONFIG_NAME: Final = "config_name"
CONFIG_DIGEST: Final = "config_digest"
METHOD: Final = "method"  # one event for each speed-up method in use
ELAPSED_MS: Final = "elapsed_ms"  # metadata of run_stop: monotonic milliseconds since run_start
RESUMED: Final = (
    "resumed"  # a run that was stopped goes on, on the clock of its first run_start; value: optimizer steps done before
)
