"""Benchmarks of text and speech, and of large language models: what each requires beyond the keys of every log, in the
form of its first round.

Source of keys and values: open_<benchmark>.yaml and closed_<benchmark>.yaml of mlperf-logging 4.1.68; of runs: its
benchmark_meta.py; of evaluation intervals and units: training_rules.adoc, "Quality measure" and epoch reporting, or as
noted.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from mlevents import keys
from mlevents.rounds.constraint import INTEGER, POSITIVE, WHOLE, Constraint, among, equal, related, within
from mlevents.rounds.image_benchmarks import OPEN_KEYS, WEIGHTS
from mlevents.rounds.required import EvaluationPoints, RequiredKey, adamw, evaluation, fixed, named, once, once_each
from mlevents.rounds.ruleset import LOSS_BY_SAMPLES, BenchmarkRules, EvaluationInterval, task

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

BATCH: Final = (keys.GLOBAL_BATCH_SIZE,)


def language_adamw(epsilon: float) -> tuple[RequiredKey, ...]:
    """Return the rules for AdamW's settings in the closed language benchmarks."""
    return (named(keys.OPT_LR_DECAY_SCHEDULE, COSINE), *adamw(0.95, epsilon, 0.1), *fixed(opt_gradient_clip_norm=1.0))


def _perplexity(name: str, target: float, runs: int, **others: Any) -> BenchmarkRules:
    """Return the rules of a benchmark by the log perplexity on C4."""
    return task(name, "c4", "log perplexity", target, runs)(**LOSS_BY_SAMPLES, **others)


# Keys that open_llama31_405b.yaml and similar files require with any value.
FREE_ADAMW: Final = once_each(
    keys.OPT_LR_WARMUP_STEPS, keys.OPT_LR_DECAY_STEPS, *(rule.key for rule in language_adamw(epsilon=1e-5))
)


def log_perplexity(target: float, points: EvaluationPoints | None = None) -> RequiredKey:
    """Return the rule that one evaluation of a language model, by samples, is at or below `target`."""
    return evaluation(within(above=0.0, most=target), progress=keys.SAMPLES_COUNT, points=points)


def decay_steps(total: int) -> RequiredKey:
    """Return the rule that the learning rate decays from the end of the warm-up to `total` steps."""
    words = f"{total:,} - {keys.OPT_LR_WARMUP_STEPS}"
    return once(
        keys.OPT_LR_DECAY_STEPS, related(words, (keys.OPT_LR_WARMUP_STEPS,), lambda v, warmup: v == total - warmup)
    )


def scaled(words: str, value_of: Callable[[float], float]) -> Constraint:
    """Return the constraint to a value that depends on the global batch size, within 1e-9."""
    return related(words, BATCH, lambda value, batch: abs(value - value_of(batch)) < 1e-9)


def _tenth_of_base(rate: float, base: float) -> bool:
    return math.isclose(rate, 0.1 * base, rel_tol=1e-6)


# training_rules.adoc, table of hyper-parameters, and for GPT-OSS 20B its appendix on v6.0.
BASE: Final = (keys.OPT_BASE_LR,)
TENTH: Final = {keys.OPT_END_LR: related("a tenth of opt_base_learning_rate", BASE, _tenth_of_base)}
_OR: Final = "a tenth of opt_base_learning_rate, or 4e-05"
TENTH_OR_REFERENCE: Final = {keys.OPT_END_LR: related(_OR, BASE, lambda v, base: v == 4e-5 or _tenth_of_base(v, base))}

_RATE_405B: Final = related("8e-5 * global_batch_size / 1152", BATCH, lambda v, batch: v * 1152 == batch * 8e-5)
_SHAPE_405B: Final = (
    once(keys.GLOBAL_BATCH_SIZE),
    *fixed(max_sequence_length=8192),
    named(keys.OPT_NAME, "adamw"),
    once(keys.OPT_END_LR),
    once(keys.GRADIENT_ACCUMULATION_STEPS, POSITIVE),
    *fixed(eval_samples=5760),
    log_perplexity(5.6),
    *fixed(init_checkpoint_step=0),
)

LLAMA31_405B: Final = _perplexity(
    "llama31_405b",
    5.6,
    runs=3,
    # The reference's README: every 46,080 sequences. Changed in 5.1 (training_policies pull request 563).
    evaluation_interval=EvaluationInterval(constant=46_080, whole_batches=True),
    training_flop=6 * 403.7e9 * 8192,  # weights in matrix products (arXiv:2407.21783, table 3)
    closed_values={
        keys.OPT_END_LR: Constraint("8e-07", lambda rate, _: math.isclose(rate, 8e-7, rel_tol=1e-6)),
        keys.OPT_LR_WARMUP_STEPS: related(  # v5.0's logs do not round it up
            "CEIL(8,000 * 1152 / global_batch_size)", BATCH, lambda v, batch: abs(v - 8000 * 1152 / batch) < 1
        ),
    },
    open_keys=(*_SHAPE_405B, once(keys.OPT_BASE_LR), *FREE_ADAMW),
    closed_keys=(
        *_SHAPE_405B,
        once(keys.OPT_BASE_LR, _RATE_405B),
        *once_each(keys.OPT_LR_DECAY_STEPS, keys.OPT_LR_WARMUP_STEPS),
        *language_adamw(epsilon=1e-5),
    ),
)

# From 5.1 on: the schedule of 1,200,000 steps at a batch of 1152, scaled to the batch in use.
DECAY_405B: Final = once(
    keys.OPT_LR_DECAY_STEPS,
    related(
        # Today's rule file computes the second term at the warm-up steps, so they must be logged before.
        "CEIL(1,200,000 * 1152 / global_batch_size) - CEIL(8,000 * 1152 / global_batch_size)",
        BATCH,
        lambda v, batch: v == math.ceil(1_200_000 * 1152 / batch) - math.ceil(8000 * 1152 / batch),
    ),
)


def _small(name: str, target: float, open_keys: tuple[RequiredKey, ...], **others: Any) -> BenchmarkRules:
    """Return the rules of a small model; the closed rule files of the two differ only in the target."""
    return _perplexity(
        *(name, target, 10),
        # Every 12288 sequences, rounded up to whole batches (training_policies pull request 567).
        evaluation_interval=EvaluationInterval(constant=12_288, whole_batches=True),
        open_keys=open_keys,
        closed_keys=(
            once(keys.GLOBAL_BATCH_SIZE),
            *fixed(max_sequence_length=8192),
            *once_each(keys.OPT_BASE_LR, keys.OPT_END_LR, keys.OPT_LR_WARMUP_STEPS),
            decay_steps(1_200_000),
            named(keys.OPT_NAME, "adamw"),
            *language_adamw(epsilon=1e-5),
            once(keys.GRADIENT_ACCUMULATION_STEPS, POSITIVE),
            *fixed(eval_samples=1024),
            log_perplexity(target),
            *fixed(max_steps=1_200_000),
        ),
        **others,
    )


LLAMA31_8B: Final = _small(
    "llama31_8b",
    3.3,
    # Any loss: today's rule files require one below 1.0, which this metric never is (see the rounds' defects).
    (evaluation(within(above=0.0), progress=keys.SAMPLES_COUNT),),
    training_flop=6 * 7.5e9 * 8192,  # weights in matrix products (arXiv:2407.21783, table 3)
    closed_values=TENTH,
)

GPT_OSS_20B: Final = _small(
    "gpt_oss_20b",
    3.34,
    (
        log_perplexity(3.34),
        *fixed(max_sequence_length=8192),
        named(keys.OPT_NAME, "adamw"),
        *once_each(keys.OPT_BASE_LR, keys.OPT_END_LR),
        *FREE_ADAMW,
        *once_each(keys.GRADIENT_ACCUMULATION_STEPS, keys.EVAL_SAMPLES, keys.MAX_STEPS),
    ),
    may_skip_evaluations=False,
    closed_values=TENTH_OR_REFERENCE,
)

_SHAPE_671B: Final = (
    once(keys.GLOBAL_BATCH_SIZE, within(least=15360)),
    *fixed(max_sequence_length=4096),
    named(keys.OPT_NAME, "adamw"),
    once(keys.MAX_STEPS),
    once(keys.GRADIENT_ACCUMULATION_STEPS, POSITIVE),
    *fixed(eval_samples=1024),
    log_perplexity(3.6),
)

DEEPSEEKV3_671B: Final = _perplexity(
    "deepseekv3_671b",
    3.6,
    runs=3,
    evaluation_interval=EvaluationInterval(constant=0, per_batch=1),  # the reference's README: every step
    open_keys=(*_SHAPE_671B, *once_each(keys.OPT_BASE_LR, "moe_aux_loss_coeff"), *FREE_ADAMW),
    closed_keys=(
        *_SHAPE_671B,
        once(
            keys.OPT_BASE_LR,
            scaled("2.4e-5 * SQRT(global_batch_size / 16384)", lambda batch: 2.4e-05 * (batch / 16384) ** 0.5),
        ),
        *fixed(opt_learning_rate_warmup_steps=4),
        decay_steps(12_000),
        *language_adamw(epsilon=1e-8),
        *fixed(moe_aux_loss_coeff=0.01),
    ),
)

# From 6.1 on, closed (training_policies pull request 587).
FIRST_EVALUATION_671B: Final = EvaluationPoints(
    words="the first one at global_batch_size * FLOOR(42 + 24576 / global_batch_size)",
    first=lambda batch: batch * math.floor(42 + 24576 / batch),
)

COUNT: Final[tuple[Constraint, ...]] = (WHOLE, POSITIVE)
SHARE: Final = (within(least=0.0, most=1.0),)

_SHAPE_QWEN: Final = (
    once(keys.GLOBAL_BATCH_SIZE, *COUNT),
    *fixed(max_sequence_length=65536, eval_samples=251, init_checkpoint_step=0),
    once(keys.MAX_STEPS),
    named(keys.OPT_NAME, "adamw"),
    once("num_prompts_per_step", *COUNT),
)

_FIXED_QWEN: Final = (
    once(keys.OPT_BASE_LR, scaled("1e-6 * SQRT(global_batch_size / 256)", lambda batch: 1e-6 * (batch / 256) ** 0.5)),
    *adamw(0.999, 1e-8, 0.0),
    once(
        keys.OPT_GRADIENT_CLIP_NORM,
        scaled("0.125 * SQRT(256 / global_batch_size)", lambda batch: 0.125 * (256 / batch) ** 0.5),
    ),
    *fixed(opt_learning_rate_warmup_steps=0),
    named(keys.OPT_LR_DECAY_SCHEDULE, "constant"),
    *fixed(generation_training_rollout_temperature=1.0, generation_training_rollout_top_p=1.0),
    *fixed(generation_validation_rollout_temperature=0.1, generation_validation_rollout_top_p=0.95),
)

QWEN35_397B_GRPO: Final = task("qwen35_397b_grpo", "swe", "share of problems solved", 0.69, runs=3)(
    target_excluded=True,
    unit="samples",
    progress=keys.SAMPLES_COUNT,
    evaluation_interval=EvaluationInterval(constant=0, per_batch=1),  # closed_qwen35_397b_grpo.yaml: every step
    open_keys=(
        *_SHAPE_QWEN,
        *once_each(*(rule.key for rule in _FIXED_QWEN)),
        once("num_generations_per_prompt", *COUNT),
        evaluation(within(above=0.69), progress=keys.SAMPLES_COUNT, value=SHARE),
    ),
    closed_keys=(
        *_SHAPE_QWEN,
        *_FIXED_QWEN,
        once(
            "num_generations_per_prompt",
            equal(16),
            related(
                "global_batch_size / num_prompts_per_step",
                (keys.GLOBAL_BATCH_SIZE, "num_prompts_per_step"),
                lambda v, batch, prompts: batch == prompts * v,
            ),
        ),
        evaluation(
            within(above=0.69),
            progress=keys.SAMPLES_COUNT,
            value=SHARE,
            points=EvaluationPoints(
                words="the first one after CEIL(2.5 + 3840 / global_batch_size) steps, then after every step",
                first=lambda batch: batch * math.ceil(2.5 + 3840 / batch),
                every=lambda batch: batch,
                without_gap=True,
            ),
        ),
    ),
)
