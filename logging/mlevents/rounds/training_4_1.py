"""MLPerf Training v4.1, ruleset 4.1.0: submission_status is no longer required; drops ResNet and U-Net3D."""

from __future__ import annotations

from typing import Final

from mlevents import keys
from mlevents.rounds import training_4_0
from mlevents.rounds.language_benchmarks import LLAMA2_70B_LORA
from mlevents.rounds.ruleset import next_round

RULESET: Final = next_round(
    training_4_0.RULESET,
    "4.1.0",
    without=[keys.SUBMISSION_STATUS],
    listed=training_4_0.BENCHMARK_WORDS,
    dropped=(keys.RESNET, "unet3d"),
    status_words=(),
    defects=(
        training_4_0.open_lora_unlisted("4.1.0"),
        training_4_0.open_counts_epochs("4.1.0", LLAMA2_70B_LORA),
    ),
    last_month="2024-10",
)
