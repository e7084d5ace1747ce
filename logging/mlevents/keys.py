"""Keys of MLPerf training logs, named as mlperf-logging's constants, and the few that this project adds.

Spelled out because importing mlperf-logging's list imports numpy; a test compares the two.
"""

from typing import Final

# Event types.
INTERVAL_START: Final = "INTERVAL_START"
INTERVAL_END: Final = "INTERVAL_END"
POINT_IN_TIME: Final = "POINT_IN_TIME"

# Submission.
SUBMISSION_BENCHMARK: Final = "submission_benchmark"
SUBMISSION_DIVISION: Final = "submission_division"
SUBMISSION_ORG: Final = "submission_org"
SUBMISSION_PLATFORM: Final = "submission_platform"
SUBMISSION_STATUS: Final = "submission_status"

# Phases of a run.
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
TRACKED_STATS: Final = "tracked_stats"  # not a constant of mlperf-logging, but the usual name in published logs

# Names inside `metadata`, and the two statuses of a finished run.
EPOCH_NUM: Final = "epoch_num"
EPOCH_COUNT: Final = "epoch_count"
FIRST_EPOCH_NUM: Final = "first_epoch_num"
SAMPLES_COUNT: Final = "samples_count"
STEP_NUM: Final = "step_num"
STEP: Final = "step"  # optimizer steps of the run so far; this project's own
METRIC: Final = "metric"  # which part of the quality an eval_accuracy holds; not a constant of mlperf-logging
STATUS: Final = "status"
SUCCESS: Final = "success"
ABORTED: Final = "aborted"

# Divisions and benchmarks.
OPEN: Final = "open"
CLOSED: Final = "closed"
RESNET: Final = "resnet"
BERT: Final = "bert"

# Dataset, seed and hyper-parameters of a run.
SEED: Final = "seed"
TRAIN_SAMPLES: Final = "train_samples"
EVAL_SAMPLES: Final = "eval_samples"
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
OPT_LAMB_BETA_1: Final = "opt_lamb_beta_1"
OPT_LAMB_BETA_2: Final = "opt_lamb_beta_2"
OPT_LAMB_EPSILON: Final = "opt_lamb_epsilon"
OPT_LAMB_WEIGHT_DECAY: Final = "opt_lamb_weight_decay_rate"
LARS_OPT_LR_DECAY_STEPS: Final = "lars_opt_learning_rate_decay_steps"

# Required in every log from v6.1 on.
LOWEST_NUMERICAL_PRECISION_IN_LINEAR: Final = "lowest_numerical_precision_in_linear"
LOWEST_NUMERICAL_PRECISION_IN_ATTN: Final = "lowest_numerical_precision_in_attn"
LOWEST_NUMERICAL_PRECISION_IN_COMM: Final = "lowest_numerical_precision_in_comm"
TENSOR_PARALLELISM: Final = "tensor_parallelism"
PIPELINE_PARALLELISM: Final = "pipeline_parallelism"
CONTEXT_PARALLELISM: Final = "context_parallelism"
EXPERT_PARALLELISM: Final = "expert_parallelism"
CONFIG_FILENAME: Final = "config_filename"

# This project's own. MLCommons' checkers skip unknown keys, so the log stays a valid MLPerf log.
DATASET: Final = "dataset"  # training data; in a demonstration not the benchmark's own
QUALITY_TARGET: Final = "quality_target"  # the target of this run
RULESET: Final = "ruleset"  # by which a trainer was asked to log this run: "4.0.0"
BENCHMARK_RULES: Final = "benchmark_rules"  # of a benchmark that no ruleset has; see mlevents.rounds.own_rules
CONFIG_NAME: Final = "config_name"
CONFIG_DIGEST: Final = "config_digest"
COMMAND: Final = "command"  # command line of a program that does not log itself; a harness read its output
REPORTED_SECONDS: Final = "reported_seconds"  # the time that such a program printed itself, beside the harness's clock
READ_LATE: Final = "read_late"  # seconds that the harness read its line late that starts or stops the clock, the larger
ENDED_AT_TARGET: Final = "ended_at_target"  # the harness ended such a program there; value: by which signal
SOURCE_SHA256: Final = "source_sha256"  # of the files of such a program that the harness found and copied
LEDGER_ENTRY: Final = "ledger_entry"  # SHA-256 of the line of the ledger that announced this run before its clock
DATA_LOADER: Final = "data_loader"  # loader of training and evaluation samples; "memory" if they are held in memory
DATA_STORE: Final = "data_store"  # storage format of the samples
DATA_ORDER: Final = "data_order"  # random, or quasi_random with its blocks and window
DATA_WORKERS: Final = "data_workers"  # decoding processes or threads per rank
DATA_PREFETCH: Final = "data_prefetch"  # batches per rank that are prepared ahead of their step
METHOD: Final = "method"  # one event for each speed-up method in use
ELAPSED_MS: Final = "elapsed_ms"  # metadata of run_stop: monotonic milliseconds since run_start
# An interrupted run continues, on the clock of its first run_start; value: optimizer steps done; metadata: attempt,
# seconds since the last event before, lines of the log and steps that were rolled back, and whether a monotonic clock
# covered all that time, so that the wall clock could be verified (clock_compared).
RESUMED: Final = "resumed"
# torch.compile compiled on the clock, for a shape that the warm-up had not covered; value: how often, over all ranks;
# metadata: seconds on the slowest rank, and the first reason.
RECOMPILED: Final = "recompiled"
# Saved during the timed run; value: optimizer steps done; metadata: seconds it took, and the reason if saving failed.
CHECKPOINT: Final = "checkpoint"
# The wall clock was stepped during the run, or during an interruption before `resumed`; value: by how many seconds.
# Repeated after `resumed` if its first line was rolled back.
CLOCK_SET: Final = "clock_set"
# Counters of the load beside the run, of one block; of several nodes, of the one loaded most; metadata `unknown`: what
# could not be read, with the reason.
MACHINE_LOAD: Final = "machine_load"

# Names inside the values of `tracked_stats`.
THROUGHPUT: Final = "throughput"  # samples per second, training only
TRAIN_LOSS: Final = "train_loss"  # of one optimizer step, the mean over its global batch; the usual name since v4.1
