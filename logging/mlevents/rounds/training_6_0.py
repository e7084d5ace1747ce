"""MLPerf Training v6.0, ruleset 6.0.0: optional precision and parallelism; adds GPT-OSS 20B and DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_5_1
from mlevents.rounds.constraint import WHOLE
from mlevents.rounds.language_benchmarks import LLAMA2_70B_LORA
from mlevents.rounds.pretraining_benchmarks import DEEPSEEKV3_671B, GPT_OSS_20B, LLAMA31_8B, LLAMA31_405B
from mlevents.rounds.ruleset import Repair, RequiredKey, next_round

# common.yaml.
PRECISION_WORDS: Final = (
    *("fp64", "fp32", "tf32", "fp16", "fp8", "nvfp4", "mxfp4", "bfloat16", "Graphcore FLOAT 16.16"),
    *("int8", "uint8", "int4", "uint4"),
)
PRECISIONS: Final = (
    keys.LOWEST_NUMERICAL_PRECISION_IN_LINEAR,
    keys.LOWEST_NUMERICAL_PRECISION_IN_ATTN,
    keys.LOWEST_NUMERICAL_PRECISION_IN_COMM,
)
SIZES: Final = (
    keys.TENSOR_PARALLELISM,
    keys.PIPELINE_PARALLELISM,
    keys.CONTEXT_PARALLELISM,
    keys.EXPERT_PARALLELISM,
    keys.MICRO_BATCH_SIZE,
)

RULESET: Final = next_round(
    training_5_1.RULESET,
    "6.0.0",
    *(RequiredKey(key=key, occurrence="any", vocabulary=PRECISION_WORDS) for key in PRECISIONS),
    *(RequiredKey(key=key, occurrence="any", value=(WHOLE,)) for key in SIZES),
    RequiredKey(key=keys.CONFIG_FILENAME, occurrence="any"),
    dropped=("retinanet", "rgat"),
    benchmarks=[
        # Open evaluations count in samples (mlcommons/logging pull request 461).
        LLAMA31_8B,
        LLAMA2_70B_LORA,
        replace(training_5_1.RULESET.benchmarks[LLAMA31_405B.name], open_keys=LLAMA31_405B.open_keys),
        GPT_OSS_20B,
        DEEPSEEKV3_671B,
    ],
    defects=(
        training_5_1.open_8b_unpassable(
            "6.0.0",
            Repair(file="training_6.0.0/open_llama31_8b.yaml", text="v['value'] < 1.0", by="v['value'] > 0.0"),
            keys.SAMPLES_COUNT,
        ),
    ),
    last_month="2026-05",
)
