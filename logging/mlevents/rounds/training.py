"""MLPerf Training's rounds from v2.0 on: v2.0 in full, each other one as its difference from a neighbour; benchmarks
beyond them."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import language_benchmarks as language
from mlevents.rounds import upstream_defects as defects
from mlevents.rounds.constraint import WHOLE, related, within
from mlevents.rounds.image_benchmarks import FLUX1, MASKRCNN, RESNET, SSD, UNET3D, stable_diffusion
from mlevents.rounds.language_benchmarks import BERT, GPT3, LLAMA2_70B_LORA, RNNT
from mlevents.rounds.recommendation_benchmarks import DLRM, DLRM_DCNV2, DLRMV4, GNN, MINIGO
from mlevents.rounds.required import RequiredKey, named, once, replaced
from mlevents.rounds.ruleset import BenchmarkRules, EvaluationInterval, Ruleset, next_round, task

# v2.0, the reference round for ResNet. Source of names and occurrences, here and below: training_X.Y.0/*.yaml of the
# compliance checker in mlperf-logging 4.1.68. The system description's status has other words than the log's.
_STATUS_WORDS: Final = ("cloud", "onprem", "preview", "research")
_NAMED_SYSTEM: Final = tuple(
    RequiredKey(key=key, filled=True) for key in (keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM)
)

V2_0: Final = Ruleset(
    name="2.0.0",
    round="v2.0",
    last_month="2022-05",
    checker="4.1.68",
    status_words=_STATUS_WORDS,
    # common.yaml, key submission_division, and training_rules.adoc: 240 minutes open, 30 closed.
    init_minutes={keys.OPEN: 240.0, keys.CLOSED: 30.0},
    # common.yaml, both divisions, and submission_benchmark from open_common.yaml and closed_common.yaml.
    required=(
        named(keys.SUBMISSION_BENCHMARK, "resnet", "ssd", "maskrcnn", "minigo", "dlrm", "bert", "rnnt", "unet3d"),
        named(keys.SUBMISSION_DIVISION, keys.CLOSED, keys.OPEN),
        *_NAMED_SYSTEM,
        named(keys.SUBMISSION_STATUS, *_STATUS_WORDS),
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
        *(
            RequiredKey(key=key, occurrence="at least one", alternative=alternative, metadata=(number,))
            for key, alternative, number in (
                (keys.BLOCK_STOP, keys.EPOCH_STOP, keys.FIRST_EPOCH_NUM),
                (keys.EPOCH_START, keys.BLOCK_START, keys.EPOCH_NUM),
                (keys.EPOCH_STOP, keys.BLOCK_STOP, keys.EPOCH_NUM),
                (keys.EVAL_START, keys.BLOCK_START, keys.EPOCH_NUM),
                (keys.EVAL_STOP, keys.BLOCK_STOP, keys.EPOCH_NUM),
                (keys.EVAL_ACCURACY, None, keys.EPOCH_NUM),
            )
        ),
        RequiredKey(key=keys.TRAIN_SAMPLES, filled=True),
        RequiredKey(key=keys.EVAL_SAMPLES, filled=True),
    ),
    closed_required=(once(keys.GRADIENT_ACCUMULATION_STEPS, within(above=0)),),  # closed_common.yaml
    benchmarks={rules.name: rules for rules in (RESNET, SSD, MASKRCNN, MINIGO, DLRM, BERT, RNNT, UNET3D)},
)

# v2.1: a rule file for BERT that changed after the round; its own name of epsilon and today's mean the same.
V2_1: Final = next_round(
    V2_0,
    "2.1.0",
    benchmarks=[BERT.requiring(RequiredKey(key="opt_epsilon", alternative=keys.OPT_LAMB_EPSILON))],
    defects=(defects.BERT_EPSILON_RENAMED,),
    last_month="2022-10",
)

# v3.0: closed_*.yaml no longer require named tensors and RNN-T's scale of them.
_WITHOUT: Final = (keys.WEIGHTS_INITIALIZATION, "model_weights_initialization_scale", "opt_epsilon")
V3_0: Final = next_round(
    V2_1,
    "3.0.0",
    dropped=("dlrm", "minigo"),
    benchmarks=[
        *(
            rules.requiring(without=_WITHOUT)
            for name, rules in V2_1.benchmarks.items()
            if name not in ("dlrm", "minigo")
        ),
        BERT.requiring(once(keys.OPT_LAMB_EPSILON), without=_WITHOUT),
        DLRM_DCNV2,
        GPT3,
    ],
    defects=(defects.open_gpt3_missing("3.0.0"),),
    last_month="2023-05",
)


def _counted_in(progress: str, required: Iterable[RequiredKey], *, epochs_too: bool = False) -> tuple[RequiredKey, ...]:
    """Return `required` with blocks and evaluations (`epochs_too`: and epochs) that may count in `progress` as well."""
    by_key = {rule.key: rule for rule in required}

    def either(key: str, number: str) -> RequiredKey:
        return replace(by_key[key], metadata=(), metadata_any=(number, progress))

    return replaced(
        required,
        replace(
            either(keys.BLOCK_START, keys.EPOCH_COUNT),
            metadata_with={keys.EPOCH_COUNT: keys.FIRST_EPOCH_NUM},
            metadata_values={keys.EPOCH_COUNT: within(above=0), progress: within(least=0)},
        ),
        either(keys.BLOCK_STOP, keys.FIRST_EPOCH_NUM),
        *(either(key, keys.EPOCH_NUM) for key in (keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY)),
        *(either(key, keys.EPOCH_NUM) for key in (keys.EPOCH_START, keys.EPOCH_STOP) if epochs_too),
    )


# v3.1: Stable Diffusion, and with it progress counted in steps.
V3_1: Final = next_round(
    V3_0,
    "3.1.0",
    required=_counted_in(keys.STEP_NUM, V3_0.required),
    # rcp_checker/training_3.1.0/rcps_unet3d.json counts samples where 3.0.0's counts epochs.
    benchmarks=[
        replace(V3_0.benchmarks["unet3d"], unit="samples", evaluation_interval=None),
        stable_diffusion("steps", keys.STEP_NUM),
    ],
    defects=(defects.open_gpt3_missing("3.1.0"),),
    last_month="2023-10",
)


def _by_samples_or_epochs(rules: BenchmarkRules) -> BenchmarkRules:
    """Return `rules` whose open evaluations may count in samples (as in the closed file) or epochs (open file)."""
    evaluated = next(rule for rule in rules.open_keys if rule.key == keys.EVAL_ACCURACY)
    either = replace(evaluated, metadata=(), metadata_any=(keys.EPOCH_NUM, keys.SAMPLES_COUNT))
    return replace(rules, open_keys=replaced(rules.open_keys, either))


# v4.0: samples instead of steps; ResNet's last round. closed_common.yaml still lists two benchmarks without rule files:
# maskrcnn and rnnt.
_LISTED: Final = (
    *("resnet", "ssd", "stable_diffusion", "maskrcnn", "gpt3", "dlrm_dcnv2", "bert", "rnnt", "unet3d", "gnn"),
    "llama2_70b_lora",
)
V4_0: Final = next_round(
    V3_1,
    "4.0.0",
    required=_counted_in(keys.SAMPLES_COUNT, V3_0.required),
    listed=_LISTED,
    dropped=("maskrcnn", "rnnt"),
    benchmarks=[stable_diffusion("samples", keys.SAMPLES_COUNT), _by_samples_or_epochs(LLAMA2_70B_LORA), GNN],
    # system_desc_checker.py, availability_options: checked from 4.0 on.
    system_status_words=(
        *("Available on-premise", "Available cloud", "Research, Development, or Internal (RDI)", "Preview"),
    ),
    defects=(defects.open_lora_unlisted("4.0.0", _LISTED), defects.open_counts_epochs("4.0.0", LLAMA2_70B_LORA)),
    last_month="2024-05",
)

# v4.1: submission_status is no longer required.
V4_1: Final = next_round(
    V4_0,
    "4.1.0",
    without=[keys.SUBMISSION_STATUS],
    listed=_LISTED,
    dropped=(keys.RESNET, "unet3d"),
    status_words=(),
    defects=(defects.open_lora_unlisted("4.1.0", _LISTED), defects.open_counts_epochs("4.1.0", LLAMA2_70B_LORA)),
    last_month="2024-10",
)

# v5.0: Llama 3.1 405B replaces GPT-3, two benchmarks are renamed. BERT's last round.
V5_0: Final = next_round(
    V4_1,
    "5.0.0",
    required=_counted_in(keys.SAMPLES_COUNT, V4_1.required, epochs_too=True),
    without=[keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM],  # required again in 5.1
    dropped=("ssd", "gnn", "gpt3"),
    benchmarks=[
        replace(V4_1.benchmarks["ssd"], name="retinanet"),
        replace(V4_1.benchmarks["gnn"], name="rgat"),
        _by_samples_or_epochs(language.LLAMA31_405B),
    ],
    defects=tuple(defects.open_counts_epochs("5.0.0", rules) for rules in (LLAMA2_70B_LORA, language.LLAMA31_405B)),
    last_month="2025-05",
)

# v5.1: Llama 3.1 8B replaces BERT, FLUX.1 replaces Stable Diffusion.
_405B: Final = V5_0.benchmarks[language.LLAMA31_405B.name]
V5_1: Final = next_round(
    V5_0,
    "5.1.0",
    *_NAMED_SYSTEM,
    dropped=(keys.BERT, "stable_diffusion"),
    benchmarks=[
        _by_samples_or_epochs(language.LLAMA31_8B),
        FLUX1,
        # training_policies pull request 563: more often, without the first FLOOR(0.0026 * batch + 12) evaluations.
        _405B.requiring(
            language.DECAY_405B, evaluation_interval=EvaluationInterval(constant=18_432, whole_batches=True)
        ),
    ],
    defects=(
        *(defects.open_counts_epochs("5.1.0", rules) for rules in (LLAMA2_70B_LORA, language.LLAMA31_405B)),
        defects.open_8b_unpassable("5.1.0", keys.EPOCH_NUM),
    ),
    last_month="2025-10",
)

# v6.0: optional precision and parallelism (common.yaml); open evaluations count in samples (mlcommons/logging pull
# request 461).
_PRECISION_WORDS: Final = (
    *("fp64", "fp32", "tf32", "fp16", "fp8", "nvfp4", "mxfp4", "bfloat16", "Graphcore FLOAT 16.16"),
    *("int8", "uint8", "int4", "uint4"),
)
_PRECISIONS: Final = (
    keys.LOWEST_NUMERICAL_PRECISION_IN_LINEAR,
    keys.LOWEST_NUMERICAL_PRECISION_IN_ATTN,
    keys.LOWEST_NUMERICAL_PRECISION_IN_COMM,
)
_SIZES: Final = (
    *(keys.TENSOR_PARALLELISM, keys.PIPELINE_PARALLELISM, keys.CONTEXT_PARALLELISM, keys.EXPERT_PARALLELISM),
    keys.MICRO_BATCH_SIZE,
)
V6_0: Final = next_round(
    V5_1,
    "6.0.0",
    *(RequiredKey(key=key, occurrence="any", vocabulary=_PRECISION_WORDS) for key in _PRECISIONS),
    *(RequiredKey(key=key, occurrence="any", value=(WHOLE,)) for key in _SIZES),
    RequiredKey(key=keys.CONFIG_FILENAME, occurrence="any"),
    dropped=("retinanet", "rgat"),
    benchmarks=[
        # training_rules.adoc, "Quality measure": only Llama 2 and Llama 3.1 405B skip evaluations.
        replace(language.LLAMA31_8B, may_skip_evaluations=False),
        replace(FLUX1, may_skip_evaluations=False),
        LLAMA2_70B_LORA,
        replace(V5_1.benchmarks[language.LLAMA31_405B.name], open_keys=language.LLAMA31_405B.open_keys),
        language.GPT_OSS_20B,
        language.DEEPSEEKV3_671B,
    ],
    defects=(defects.open_8b_unpassable("6.0.0"),),
    last_month="2026-05",
)

# v6.1: required precision, one of v6.0's or mxfp6, and parallelism.
_WHOLE: Final = "262,144 rounded up to whole batches"
_WHOLE_BATCHES: Final = related(_WHOLE, language.BATCH, lambda v, batch: v == math.ceil(262_144 / batch) * batch)
V6_1: Final = next_round(
    V6_0,
    "6.1.0",
    *(named(key, *_PRECISION_WORDS[:5], "mxfp6", *_PRECISION_WORDS[5:]) for key in _PRECISIONS),
    *(once(key, WHOLE, within(least=1)) for key in _SIZES),
    RequiredKey(key=keys.CONFIG_FILENAME, filled=True),
    dropped=("dlrm_dcnv2", "llama31_405b"),
    benchmarks=[
        V6_0.benchmarks[FLUX1.name].requiring(once("evaluation_frequency", _WHOLE_BATCHES)),
        replace(language.GPT_OSS_20B, closed_values=language.TENTH),
        language.DEEPSEEKV3_671B.requiring(language.log_perplexity(3.6, language.FIRST_EVALUATION_671B)),
        language.QWEN35_397B_GRPO,
        DLRMV4,
    ],
    defects=(defects.open_8b_unpassable("6.1.0"),),
    last_month="2026-10",
)

ROUNDS: Final = (V2_0, V2_1, V3_0, V3_1, V4_0, V4_1, V5_0, V5_1, V6_0, V6_1)

# Benchmarks outside of MLPerf, under the general rules of its open division; MLCommons' tools do not know them.
# Target: ln 24.11: the perplexity that MosaicML Composer's README of 2022 gives for its GPT-2 125M
# Runs: our own choice
GPT_125M: Final = task("gpt_125m", "openwebtext", "validation loss", 3.1826, runs=5)(
    direction="<=",
    unit="samples",
    evaluation_interval=EvaluationInterval(constant=512_000),  # our own choice: 1,000 steps of the published batch
)

# Target: of the modded-nanogpt speed runs, on the first 10,485,760 tokens of FineWeb's validation shard
# Runs: our own choice; the mean of runs of one length is another question: `score --target-test`
GPT_124M_FINEWEB: Final = task("gpt_124m_fineweb", "fineweb", "validation loss", 3.28, runs=5)(
    direction="<=",
    unit="samples",
    evaluation_interval=EvaluationInterval(constant=64_000),  # our own choice: 125 steps of 524,288 tokens
    samples={keys.EVAL_SAMPLES: (10_240, 10_240)},  # sequences of 1,024 tokens
)

BEYOND_MLPERF: Final = replace(
    next_round(V2_1, "beyond_mlperf", dropped=V2_1.benchmarks, benchmarks=[GPT_125M, GPT_124M_FINEWEB]),
    round="none",
    checker="",
)
