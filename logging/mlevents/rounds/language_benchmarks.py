"""Text and speech benchmarks: what each requires beyond the keys of every log, in the form of its first round.

Source of keys and values: open_<benchmark>.yaml and closed_<benchmark>.yaml of mlperf-logging 4.1.68; of runs: its
benchmark_meta.py; of evaluation intervals and units: training_rules.adoc, "Quality measure" and epoch reporting.
"""

import math
from typing import Final

from mlevents import keys
from mlevents.rounds.constraint import INTEGER, POSITIVE, among, within
from mlevents.rounds.image_benchmarks import OPEN_KEYS, WEIGHTS
from mlevents.rounds.required import evaluation, fixed, named, once, once_each
from mlevents.rounds.ruleset import LOSS_BY_SAMPLES, EvaluationInterval, task

COSINE: Final = "cosine with linear warmup"

# Target: training_rules.adoc, table of benchmarks: 0.720 Mask-LM accuracy
BERT: Final = task(keys.BERT, "wikipedia", "Mask-LM accuracy", 0.720, runs=10)(
    unit="samples",  # training samples, as an integer, in epoch_num
    # FLOOR(0.05 * (230.23 * global batch + 3,000,000), 25,000) samples; 150,000 at a batch of 448.
    evaluation_interval=EvaluationInterval(constant=0.05 * 3_000_000, per_batch=0.05 * 230.23, multiple=25_000),
    offline_evaluation=True,
    samples={keys.EVAL_SAMPLES: (10_000, 10_000)},
    # Half of the tokens are padding, which may be skipped (arXiv:2107.02027): 254.5 of 512 remain, with 24 layers of
    # 12 * 1024^2 weights (arXiv:1810.04805), and 6 operations per weight and token.
    training_flop=6 * 24 * 12 * 1024**2 * 254.5,
    open_keys=OPEN_KEYS,
    closed_keys=(
        *once_each(keys.GLOBAL_BATCH_SIZE, keys.OPT_BASE_LR),
        once("opt_epsilon"),  # later opt_lamb_epsilon
        *once_each(keys.OPT_LR_TRAINING_STEPS, keys.OPT_LR_WARMUP_STEPS, keys.NUM_WARMUP_STEPS, keys.START_WARMUP_STEP),
        *once_each(keys.OPT_LAMB_BETA_1, keys.OPT_LAMB_BETA_2, keys.OPT_LAMB_WEIGHT_DECAY),
        WEIGHTS,
        evaluation(within(least=0.720, below=1.0)),
    ),
)

RNNT: Final = task("rnnt", "librispeech", "word error rate", 0.058, runs=10)(
    direction="<=",
    evaluation_interval=EvaluationInterval(constant=1),
    open_keys=OPEN_KEYS,
    closed_keys=(
        WEIGHTS,
        *once_each("model_weights_initialization_scale", keys.GLOBAL_BATCH_SIZE),
        named(keys.OPT_NAME, "lamb"),
        once(keys.OPT_BASE_LR),
        *fixed(opt_lamb_epsilon=1e-9),
        *once_each("opt_lamb_learning_rate_decay_poly_power", "opt_lamb_learning_rate_hold_epochs"),
        once(keys.OPT_LR_WARMUP_EPOCHS),
        *fixed(opt_weight_decay=1e-3),
        *once_each(keys.OPT_LAMB_BETA_1, keys.OPT_LAMB_BETA_2),
        once(keys.OPT_GRADIENT_CLIP_NORM, among(1, math.inf)),
        *fixed(opt_learning_rate_alt_decay_func=True, opt_learning_rate_alt_warmup_func=True),
        *fixed(opt_lamb_learning_rate_min=1e-5),
        once(keys.TRAIN_SAMPLES),
        *fixed(eval_samples=2703),
        once("data_train_max_duration"),
        once("data_train_num_buckets", INTEGER),
        # The spelling of mlperf-logging.
        *fixed(data_speed_perturbaton_min=0.85, data_speed_perturbaton_max=1.15),
        *fixed(data_spec_augment_freq_n=2, data_spec_augment_freq_min=0, data_spec_augment_freq_max=20),
        *fixed(data_spec_augment_time_n=10, data_spec_augment_time_min=0, data_spec_augment_time_max=0.03),
        once("model_eval_ema_factor"),
        *fixed(eval_max_prediction_symbols=300),
        evaluation(within(above=0.0, most=0.058)),
    ),
)

_GPT3_KEYS: Final = (
    once(keys.GLOBAL_BATCH_SIZE),
    *fixed(max_sequence_length=2048),
    named(keys.OPT_NAME, "adam"),
    once(keys.OPT_BASE_LR, among(2e-5, 3e-5)),
    *once_each(keys.OPT_END_LR, keys.OPT_LR_DECAY_STEPS, keys.OPT_LR_WARMUP_STEPS),
    named(keys.OPT_LR_DECAY_SCHEDULE, COSINE),
    *fixed(opt_adam_beta_1=0.9, opt_adam_beta_2=0.95, opt_adam_epsilon=1e-8, opt_gradient_clip_norm=1.0),
    once(keys.GRADIENT_ACCUMULATION_STEPS, POSITIVE),
    once(keys.EVAL_SAMPLES),
    evaluation(within(above=2.6, most=2.69)),
    once("init_checkpoint_step", POSITIVE),
)

GPT3: Final = task("gpt3", "c4", "log perplexity", 2.69, runs=3)(
    direction="<=",
    unit="tokens",  # "Training token starting from 0 (integer)"
    training_flop=6 * 175e9,  # 6 operations per parameter and token (arXiv:2001.08361; 175e9: arXiv:2005.14165)
    open_keys=_GPT3_KEYS,  # as closed (training_4.0.0/open_gpt3.yaml)
    closed_keys=_GPT3_KEYS,
)

LLAMA2_70B_LORA: Final = task("llama2_70b_lora", "govreport", "cross entropy", 0.925, runs=10)(
    **LOSS_BY_SAMPLES,
    # Every 384 sequences, rounded up to whole batches; the first FLOOR(0.125 * batch + 2) evaluations are skipped.
    evaluation_interval=EvaluationInterval(constant=384, whole_batches=True),
    samples={keys.TRAIN_SAMPLES: (3901, 3901), keys.EVAL_SAMPLES: (173, 173)},
    # 68.7e9 weights (arXiv:2307.09288) in sequences of 8,192; LoRA needs no gradients of them, so 4 operations each.
    training_flop=4 * 68.7e9 * 8192,
    open_keys=(evaluation(within(below=1.0), progress=keys.SAMPLES_COUNT),),
    closed_keys=(
        *once_each(keys.GLOBAL_BATCH_SIZE, keys.OPT_BASE_LR, "lora_alpha", keys.OPT_LR_TRAINING_STEPS),
        *once_each(keys.OPT_GRADIENT_CLIP_NORM, "opt_adamw_weight_decay", keys.GRADIENT_ACCUMULATION_STEPS),
        *fixed(lora_rank=16),
        evaluation(within(above=0.0, most=0.925), progress=keys.SAMPLES_COUNT),
    ),
)
