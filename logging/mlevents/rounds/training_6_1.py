"""MLPerf Training v6.1, ruleset 6.1.0: required precision and parallelism; adds Qwen3.5 GRPO and DLRMv4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_5_1, training_6_0
from mlevents.rounds.constraint import WHOLE, related, within
from mlevents.rounds.image_benchmarks import FLUX1
from mlevents.rounds.pretraining_benchmarks import (
    DEEPSEEKV3_671B,
    FIRST_EVALUATION_671B,
    QWEN35_397B_GRPO,
    log_perplexity,
)
from mlevents.rounds.recommendation_benchmarks import DLRMV4
from mlevents.rounds.ruleset import Repair, RequiredKey, named, next_round, once, replaced

# common.yaml: as 6.0.0, and mxfp6.
PRECISION_WORDS: Final = (
    *("fp64", "fp32", "tf32", "fp16", "fp8", "mxfp6", "nvfp4", "mxfp4", "bfloat16", "Graphcore FLOAT 16.16"),
    *("int8", "uint8", "int4", "uint4"),
)

_WHOLE_BATCHES: Final = related(
    "262,144 rounded up to whole batches",
    (keys.GLOBAL_BATCH_SIZE,),
    lambda v, batch: v == math.ceil(262_144 / batch) * batch,
)

RULESET: Final = next_round(
    training_6_0.RULESET,
    "6.1.0",
    *(named(key, *PRECISION_WORDS) for key in training_6_0.PRECISIONS),
    *(once(key, WHOLE, within(least=1)) for key in training_6_0.SIZES),
    RequiredKey(key=keys.CONFIG_FILENAME, filled=True),
    dropped=("dlrm_dcnv2", "llama31_405b"),
    benchmarks=[
        replace(FLUX1, closed_keys=replaced(FLUX1.closed_keys, once("evaluation_frequency", _WHOLE_BATCHES))),
        replace(
            DEEPSEEKV3_671B,
            closed_keys=replaced(DEEPSEEKV3_671B.closed_keys, log_perplexity(3.6, FIRST_EVALUATION_671B)),
        ),
        QWEN35_397B_GRPO,
        DLRMV4,
    ],
    defects=(
        training_5_1.open_8b_unpassable(
            "6.1.0",
            Repair(file="training_6.1.0/open_llama31_8b.yaml", text="v['value'] < 1.0", by="v['value'] > 0.0"),
            keys.SAMPLES_COUNT,
        ),
    ),
    last_month="2026-10",
)
