"""MLPerf Training v6.0, ruleset 6.0.0: optional precision and parallelism; adds GPT-OSS 20B and DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_5_1
from mlevents.rounds.constraint import Whole
from mlevents.rounds.language_benchmarks import LLAMA2_70B_LORA
from mlevents.rounds.pretraining_benchmarks import DEEPSEEKV3_671B, GPT_OSS_20B, LLAMA31_8B, LLAMA31_405B
from mlevents.rounds.ruleset import Repair, RequiredKey, named, replaced

_BEFORE: Final = training_5_1.RULESET.benchmarks

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

RULESET: Final = replace(
    training_5_1.RULESET,
    name="6.0.0",
    round="v6.0",
    required=replaced(
        training_5_1.RULESET.required,
        named(
            keys.SUBMISSION_BENCHMARK,
            *("flux1", "dlrm_dcnv2", "llama31_8b", "llama2_70b_lora", "llama31_405b", "gpt_oss_20b", "deepseekv3_671b"),
        ),
        *(RequiredKey(key=key, occurrence="any", vocabulary=PRECISION_WORDS) for key in PRECISIONS),
        *(RequiredKey(key=key, occurrence="any", value=(Whole(),)) for key in SIZES),
        RequiredKey(key=keys.CONFIG_FILENAME, occurrence="any"),
    ),
    benchmarks={
        **{name: rules for name, rules in _BEFORE.items() if name not in ("retinanet", "rgat")},
        # Open evaluations count in samples (mlcommons/logging pull request 461).
        LLAMA31_8B.name: LLAMA31_8B,
        LLAMA2_70B_LORA.name: LLAMA2_70B_LORA,
        LLAMA31_405B.name: replace(_BEFORE[LLAMA31_405B.name], open_keys=LLAMA31_405B.open_keys),
        GPT_OSS_20B.name: GPT_OSS_20B,
        DEEPSEEKV3_671B.name: DEEPSEEKV3_671B,
    },
    defects=(
        training_5_1.open_8b_unpassable(
            "6.0.0",
            Repair(file="training_6.0.0/open_llama31_8b.yaml", text="v['value'] < 1.0", by="v['value'] > 0.0"),
            keys.SAMPLES_COUNT,
        ),
    ),
)
