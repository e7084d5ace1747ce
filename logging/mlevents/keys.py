"""The keys of an MLPerf training log, by the names of mlperf-logging's own constants, and the few this project adds.

Written out because importing that list imports numpy; a test compares the two.
"""

from __future__ import annotations

from typing import Final

# Event types.
INTERVAL_START: Final = "INTERVAL_START"
INTERVAL_END: Final = "INTERVAL_END"
POINT_IN_TIME: Final = "POINT_IN_TIME"

# Who submits what.
SUBMISSION_BENCHMARK: Final = "submission_benchmark"
SUBMISSION_DIVISION: Final = "submission_division"
SUBMISSION_ORG: Final = "submission_org"
SUBMISSION_PLATFORM: Final = "submission_platform"
SUBMISSION_STATUS: Final = "submission_status"
SUBMISSION_POC_NAME: Final = "submission_poc_name"
SUBMISSION_POC_EMAIL: Final = "submission_poc_email"

# The course of a run.
CACHE_CLEAR: Final = "cache_clear"
INIT_START: Final = "init_start"
INIT_STOP: Final = "init_stop"
RUN_START: Final = "run_start"
RUN_STOP: Final = "run_stop"
BLOCK_START: Final = "block_start"
BLOCK_STOP: Final = "block_stop"
EPOCH_START: Final = "epoch_start"
EPOCH_STOP: Final = "epoch_stop"
EVAL_START: Final = "eval_start"
EVAL_STOP: Final = "eval_stop"
EVAL_ACCURACY: Final = "eval_accuracy"
TRACKED_STATS: Final = "tracked_stats"  # no constant of mlperf-logging, but its usual name in published logs

# Names inside `metadata`, and the two words of a finished run.
EPOCH_NUM: Final = "epoch_num"
EPOCH_COUNT: Final = "epoch_count"
FIRST_EPOCH_NUM: Final = "first_epoch_num"
SAMPLES_COUNT: Final = "samples_count"
STEP_NUM: Final = "step_num"
METRIC: Final = "metric"  # which part of the quality an eval_accuracy is; no constant of mlperf-logging
STATUS: Final = "status"
SUCCESS: Final = "success"
ABORTED: Final = "aborted"

# Divisions and benchmarks.
OPEN: Final = "open"
CLOSED: Final = "closed"
RESNET: Final = "resnet"
BERT: Final = "bert"

# Facts and hyper-parameters of a run.
SEED: Final = "seed"
TRAIN_SAMPLES: Final = "train_samples"
EVAL_SAMPLES: Final = "eval_samples"
TRAINED_SAMPLES: Final = "trained_samples"
GLOBAL_BATCH_SIZE: Final = "global_batch_size"
GRADIENT_ACCUMULATION_STEPS: Final = "gradient_accumulation_steps"
MICRO_BATCH_SIZE: Final = "micro_batch_size"
WEIGHTS_INITIALIZATION: Final = "weights_initialization"
MAX_SEQUENCE_LENGTH: Final = "max_sequence_length"
MAX_STEPS: Final = "max_steps"
MODEL_BN_SPAN: Final = "model_bn_span"
NUM_WARMUP_STEPS: Final = "num_warmup_steps"
START_WARMUP_STEP: Final = "start_warmup_step"
OPT_NAME: Final = "opt_name"
OPT_BASE_LR: Final = "opt_base_learning_rate"
OPT_END_LR: Final = "opt_end_learning_rate"
OPT_WEIGHT_DECAY: Final = "opt_weight_decay"
OPT_GRADIENT_CLIP_NORM: Final = "opt_gradient_clip_norm"
OPT_LR_WARMUP_EPOCHS: Final = "opt_learning_rate_warmup_epochs"
OPT_LR_WARMUP_STEPS: Final = "opt_learning_rate_warmup_steps"
OPT_LR_TRAINING_STEPS: Final = "opt_learning_rate_training_steps"
OPT_LR_DECAY_STEPS: Final = "opt_learning_rate_decay_steps"
OPT_LR_DECAY_SCHEDULE: Final = "opt_learning_rate_decay_schedule"
OPT_ADAMW_BETA_1: Final = "opt_adamw_beta_1"
OPT_ADAMW_BETA_2: Final = "opt_adamw_beta_2"
OPT_ADAMW_EPSILON: Final = "opt_adamw_epsilon"
OPT_ADAMW_WEIGHT_DECAY: Final = "opt_adamw_weight_decay"
OPT_LAMB_BETA_1: Final = "opt_lamb_beta_1"
OPT_LAMB_BETA_2: Final = "opt_lamb_beta_2"
OPT_LAMB_EPSILON: Final = "opt_lamb_epsilon"
OPT_LAMB_WEIGHT_DECAY: Final = "opt_lamb_weight_decay_rate"
LARS_EPSILON: Final = "lars_epsilon"
LARS_OPT_BASE_LEARNING_RATE: Final = "lars_opt_base_learning_rate"
LARS_OPT_END_LR: Final = "lars_opt_end_learning_rate"
LARS_OPT_LR_DECAY_POLY_POWER: Final = "lars_opt_learning_rate_decay_poly_power"
LARS_OPT_LR_DECAY_STEPS: Final = "lars_opt_learning_rate_decay_steps"
LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS: Final = "lars_opt_learning_rate_warmup_epochs"
LARS_OPT_MOMENTUM: Final = "lars_opt_momentum"
LARS_OPT_WEIGHT_DECAY: Final = "lars_opt_weight_decay"

# Asked of every log from 6.1 on.
LOWEST_NUMERICAL_PRECISION_IN_LINEAR: Final = "lowest_numerical_precision_in_linear"
LOWEST_NUMERICAL_PRECISION_IN_ATTN: Final = "lowest_numerical_precision_in_attn"
LOWEST_NUMERICAL_PRECISION_IN_COMM: Final = "lowest_numerical_precision_in_comm"
TENSOR_PARALLELISM: Final = "tensor_parallelism"
PIPELINE_PARALLELISM: Final = "pipeline_parallelism"
CONTEXT_PARALLELISM: Final = "context_parallelism"
EXPERT_PARALLELISM: Final = "expert_parallelism"
CONFIG_FILENAME: Final = "config_filename"

# This project's own. MLCommons' checkers skip keys they do not know, so such a log stays a valid MLPerf log.
DATASET: Final = "dataset"  # what was trained on; differs from the benchmark's own in a demonstration
QUALITY_TARGET: Final = "quality_target"  # the target this run trained to
CONFIG_NAME: Final = "config_name"
CONFIG_DIGEST: Final = "config_digest"
DATA_LOADER: Final = "data_loader"  # what read the training and evaluation samples; "memory" where they are held in it
DATA_STORE: Final = "data_store"  # how they lie on disk
DATA_ORDER: Final = "data_order"  # random, or quasi_random with its blocks and window
DATA_WORKERS: Final = "data_workers"  # decoding processes or threads a rank
DATA_PREFETCH: Final = "data_prefetch"  # batches of a rank made ready ahead of the step that takes them
METHOD: Final = "method"  # one event for each speed-up method in use
ELAPSED_MS: Final = "elapsed_ms"  # metadata of run_stop: monotonic milliseconds since run_start
RESUMED: Final = (
    "resumed"  # a run that was stopped goes on, on the clock of its first run_start; value: optimizer steps done;
    # metadata: which attempt, seconds since the last event before, lines of the log and steps that were taken back, and
    # whether the wall clock could be compared with a monotonic one over all that time (clock_compared)
)
PAGE_CACHE_RESIDENT: Final = "page_cache_resident"  # share, 0..1, of the data's files in rank 0's node's page cache
COLD_START: Final = "cold_start"  # what the first epoch or block of training took beyond the median later one
SLOW_RANK: Final = "slow_rank"  # a rank that the others wait for; metadata: its and the median rank's seconds a step
FAULT: Final = "fault"  # one was asked for, to see what follows: no honest result
CHECKPOINT: Final = (
    "checkpoint"  # saved on the clock while training went on; value: optimizer steps done; metadata: seconds it took,
    # and where it could not be saved the reason
)
CLOCK_SET: Final = (
    "clock_set"  # the wall clock was set while the run went on, or stood still before `resumed`; value: by how many
    # seconds. Said again after `resumed` where the line that said it was taken back
)
COLLECTIVE_TEST: Final = "collective_test"  # of all ranks, before init_stop; value: what was measured
READ_AHEAD: Final = "read_ahead"  # bytes read into the page cache while training went on

# Names inside the values of `tracked_stats` and `cold_start`.
THROUGHPUT: Final = "throughput"  # samples a second of training alone
