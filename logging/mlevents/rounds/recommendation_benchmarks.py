"""Recommendation, graph and game benchmarks: what each requires, in the form of its first round.

Source of keys and values: open_<benchmark>.yaml and closed_<benchmark>.yaml of mlperf-logging 4.1.68; of runs: its
benchmark_meta.py. The rules' text gives evaluation intervals as shares of the data, which the logs of these
benchmarks do not count in, so they are left out unless the rule file checks them.
"""

import math
from typing import Final

from mlevents import keys
from mlevents.rounds.constraint import NOT_NEGATIVE, POSITIVE, related, within
from mlevents.rounds.image_benchmarks import OPEN_KEYS, WEIGHTS
from mlevents.rounds.language_benchmarks import COUNT, SHARE
from mlevents.rounds.required import EvaluationPoints, RequiredKey, evaluation, fixed, named, once, once_each
from mlevents.rounds.ruleset import EvaluationInterval, task

DLRM: Final = task("dlrm", "criteo", "area under the ROC curve", 0.8025, runs=5)(
    first_block=1.05,  # counts 1.05, 1.1, 1.15 ...: training_rules.adoc of September 2021, epoch reporting
    ends_in_evaluation=True,
    samples={keys.EVAL_SAMPLES: (89_137_318, 89_137_319)},  # some logs of v1.0 have one less
    open_keys=OPEN_KEYS,
    closed_keys=(
        WEIGHTS,
        *once_each(keys.GLOBAL_BATCH_SIZE, keys.OPT_BASE_LR, keys.OPT_LR_WARMUP_STEPS, "lr_decay_start_steps"),
        once("sgd_opt_base_learning_rate"),
        *fixed(sgd_opt_learning_rate_decay_poly_power=2),
        once("sgd_opt_learning_rate_decay_steps"),
        evaluation(within(least=0.8025, below=1.0)),
    ),
)

DLRM_DCNV2: Final = task("dlrm_dcnv2", "criteo-multihot", "area under the ROC curve", 0.80275, runs=10)(
    cache_clear_by_time=True,
    ends_in_evaluation=True,
    samples={keys.EVAL_SAMPLES: (89_137_319, 89_137_319)},
    open_keys=(evaluation(within(most=1.0)),),
    closed_keys=(
        once(keys.GLOBAL_BATCH_SIZE),
        named(keys.OPT_NAME, "adagrad"),
        once(keys.OPT_BASE_LR),
        *fixed(opt_adagrad_learning_rate_decay=0, opt_weight_decay=0, opt_adagrad_initial_accumulator_value=0),
        *fixed(opt_adagrad_epsilon=1e-8, opt_learning_rate_warmup_steps=0, opt_learning_rate_decay_start_step=0),
        *fixed(opt_learning_rate_decay_steps=0),
        evaluation(within(least=0.80275, most=1.0)),
        *fixed(eval_samples=89_137_319),
    ),
)

TRAIN_SAMPLES_V4: Final = 2_290_835_423


def _interval_v4(batch: float) -> float:
    return max(1, math.ceil(0.001 * TRAIN_SAMPLES_V4 / batch)) * batch


def _first_v4(batch: float) -> float:
    """Return the earliest convergence of the reference, a line through its sweep, rounded up to an evaluation point."""
    earliest = math.floor((4480 * batch + 135_331_840) / 3)
    return math.ceil(earliest / _interval_v4(batch)) * _interval_v4(batch)


_RATE_V4: Final = related(
    "within 0.5 to 1.5 times 1e-6 * global_batch_size / 8192",
    (keys.GLOBAL_BATCH_SIZE,),
    lambda v, batch: 0.5e-6 * batch / 8192 * (1 - 1e-9) <= v <= 1.5e-6 * batch / 8192 * (1 + 1e-9),
)
_SHAPE_V4: Final = (
    once(keys.GLOBAL_BATCH_SIZE, *COUNT),
    *fixed(train_samples=TRAIN_SAMPLES_V4, eval_samples=2_058_204),
    once(keys.OPT_BASE_LR, _RATE_V4),
)

DLRMV4: Final = task("dlrmv4", "yambda-5b", "area under the ROC curve", 0.75, runs=10)(
    unit="samples",
    progress=keys.SAMPLES_COUNT,
    # closed_dlrmv4.yaml: every 0.1 % of the training samples, rounded up to whole batches.
    evaluation_interval=EvaluationInterval(constant=0.001 * TRAIN_SAMPLES_V4, whole_batches=True),
    open_keys=(
        *_SHAPE_V4,
        *once_each(keys.GRADIENT_ACCUMULATION_STEPS, keys.MAX_SEQUENCE_LENGTH, value=COUNT),
        *once_each(keys.OPT_NAME, "opt_adam_beta_1", "opt_adam_beta_2", "opt_adam_epsilon", keys.OPT_WEIGHT_DECAY),
        *once_each(keys.OPT_GRADIENT_CLIP_NORM, "opt_sparse_name"),
        once("opt_sparse_base_learning_rate", _RATE_V4),
        *once_each(keys.OPT_LR_WARMUP_STEPS, "opt_learning_rate_warmup_start_lr", "eval_every_data_pct"),
        evaluation(within(least=0.75), progress=keys.SAMPLES_COUNT, value=SHARE),
    ),
    closed_keys=(
        *_SHAPE_V4,
        *fixed(max_sequence_length=4096),
        named(keys.OPT_NAME, "Adam"),
        *fixed(opt_adam_beta_1=0.95, opt_adam_beta_2=0.999, opt_adam_epsilon=1e-8, opt_weight_decay=0.0),
        *fixed(opt_gradient_clip_norm=1.0),
        named("opt_sparse_name", "RowWiseAdagrad"),
        once(
            "opt_sparse_base_learning_rate", related(keys.OPT_BASE_LR, (keys.OPT_BASE_LR,), lambda v, dense: v == dense)
        ),
        *fixed(opt_learning_rate_warmup_steps=24_000, opt_learning_rate_warmup_start_lr=0.0, eval_every_data_pct=0.001),
        evaluation(
            within(least=0.75),
            progress=keys.SAMPLES_COUNT,
            value=SHARE,
            points=EvaluationPoints(
                words="every 0.1 % of the training samples in whole batches, the first where the reference converges",
                first=_first_v4,
                every=_interval_v4,
            ),
        ),
    ),
)

# A relational graph attention network; from 5.0 on named rgat.
GNN: Final = task("gnn", "igbh", "classification accuracy", 0.72, runs=10)(
    samples={keys.TRAIN_SAMPLES: (94_605_581, 94_605_581), keys.EVAL_SAMPLES: (788_379, 788_379)},
    open_keys=OPEN_KEYS,
    closed_keys=(
        once(keys.GLOBAL_BATCH_SIZE, POSITIVE),
        named(keys.OPT_NAME, "adam"),
        once(keys.OPT_BASE_LR, NOT_NEGATIVE),
        evaluation(within(least=0.72, below=1.0)),
    ),
)

MINIGO: Final = task("minigo", "go", "win rate against the checkpoint", 0.5, runs=10)(
    evaluation_interval=EvaluationInterval(constant=1),  # training_rules.adoc, "Quality measure": every 1 epoch
    offline_evaluation=True,
    from_first_epoch=False,
    open_keys=OPEN_KEYS,
    closed_keys=(
        *once_each("train_batch_size", "lr_boundaries", "lr_rates"),
        RequiredKey(key="actual_selfplay_games_per_generation", occurrence="at least one", value=(within(least=8192),)),
        *fixed(min_selfplay_games_per_generation=8192),
        evaluation(within(least=0.5, below=1.0)),
        # Optional here, which overrides the common rules: self-play has neither samples nor blocks.
        *(
            RequiredKey(key=key, occurrence="any")
            for key in (keys.BLOCK_START, keys.BLOCK_STOP, keys.TRAIN_SAMPLES, keys.EVAL_SAMPLES)
        ),
    ),
)
