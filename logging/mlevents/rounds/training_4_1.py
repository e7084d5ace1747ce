"""MLPerf Training v4.1, ruleset 4.1.0: submission_status is no longer required; drops ResNet and U-Net3D."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_4_0
from mlevents.rounds.language_benchmarks import LLAMA2_70B_LORA
from mlevents.rounds.ruleset import replaced

RULESET: Final = replace(
    training_4_0.RULESET,
    name="4.1.0",
    round="v4.1",
    status_words=(),
    required=replaced(training_4_0.RULESET.required, without=[keys.SUBMISSION_STATUS]),
    benchmarks={
        name: rules for name, rules in training_4_0.RULESET.benchmarks.items() if name not in (keys.RESNET, "unet3d")
    },
    defects=(
        training_4_0.open_lora_unlisted("4.1.0"),
        training_4_0.open_counts_epochs("4.1.0", LLAMA2_70B_LORA),
    ),
)
