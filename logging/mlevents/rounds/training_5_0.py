"""MLPerf Training v5.0, ruleset 5.0.0: Llama 3.1 405B replaces GPT-3, two benchmarks are renamed. BERT's last round."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_3_1, training_4_0, training_4_1
from mlevents.rounds.language_benchmarks import LLAMA2_70B_LORA
from mlevents.rounds.pretraining_benchmarks import LLAMA31_405B
from mlevents.rounds.ruleset import next_round

_BEFORE: Final = training_4_1.RULESET.benchmarks

RULESET: Final = next_round(
    training_4_1.RULESET,
    "5.0.0",
    required=training_3_1.counted_in(keys.SAMPLES_COUNT, training_4_1.RULESET.required, epochs_too=True),
    without=[keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM],  # required again in 5.1
    dropped=("ssd", "gnn", "gpt3"),
    benchmarks=[
        replace(_BEFORE["ssd"], name="retinanet"),
        replace(_BEFORE["gnn"], name="rgat"),
        training_4_0.by_samples_or_epochs(LLAMA31_405B),
    ],
    defects=(
        training_4_0.open_counts_epochs("5.0.0", LLAMA2_70B_LORA),
        training_4_0.open_counts_epochs("5.0.0", LLAMA31_405B),
    ),
    last_month="2025-05",
)
