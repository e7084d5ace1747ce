"""MLPerf Training v2.1, ruleset 2.1.0: v2.0's rules with one renamed BERT key. The reference round for BERT."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_2_0

# training_2.1.0/*.yaml of mlperf-logging 4.1.68 differ from 2.0.0 in this one key of closed_bert.yaml. The rename was
# made after the round (mlcommons/logging issue 277), so closed BERT logs published in v2.1 carry the old name and fail.
RENAMED: Final = {"opt_epsilon": keys.OPT_LAMB_EPSILON}

RULESET: Final = replace(
    training_2_0.RULESET,
    name="2.1.0",
    round="v2.1",
    benchmarks={
        keys.RESNET: training_2_0.RESNET,
        keys.BERT: replace(
            training_2_0.BERT,
            closed_keys=tuple(
                replace(required, key=RENAMED.get(required.key, required.key))
                for required in training_2_0.BERT.closed_keys
            ),
        ),
    },
)
