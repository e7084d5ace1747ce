"""Pre-training and reinforcement learning of large language models: what each requires, in the form of its first round.

Source of keys and values: open_<benchmark>.yaml and closed_<benchmark>.yaml of mlperf-logging 4.1.68; of runs: its
benchmark_meta.py; of evaluation intervals: training_rules.adoc, "Quality measure", or as noted.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from mlevents import keys
from mlevents.rounds.constraint import POSITIVE, WHOLE, Constraint, equal, related, within
from mlevents.rounds.language_benchmarks import COSINE
from mlevents.rounds.required import EvaluationPoints, RequiredKey, adamw, evaluation, fixed, named, once, once_each
from mlevents.rounds.ruleset import LOSS_BY_SAMPLES, BenchmarkRules, EvaluationInterval, task

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
