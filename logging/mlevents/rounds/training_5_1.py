"""MLPerf Training v5.1, ruleset 5.1.0: Llama 3.1 8B replaces BERT, FLUX.1 replaces Stable Diffusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_2_0, training_4_0, training_5_0
from mlevents.rounds.constraint import within
from mlevents.rounds.image_benchmarks import FLUX1
from mlevents.rounds.language_benchmarks import LLAMA2_70B_LORA
from mlevents.rounds.pretraining_benchmarks import DECAY_405B, LLAMA31_8B, LLAMA31_405B
from mlevents.rounds.ruleset import Repair, UpstreamDefect, evaluation, next_round, replaced

_405B: Final = training_5_0.RULESET.benchmarks[LLAMA31_405B.name]


def open_8b_unpassable(name: str, repair: Repair, progress: str) -> UpstreamDefect:
    """Return the defect of an open rule for accuracies that was kept for a log perplexity with target 3.3."""
    return UpstreamDefect(
        rule="open-llama31-8b-unpassable",
        benchmark=LLAMA31_8B.name,
        division=keys.OPEN,
        meaning="the open rule file requires an eval_accuracy below 1.0, but the metric is a log perplexity whose "
        "target is 3.3, so that no real log passes",
        source=f"training_{name}/open_llama31_8b.yaml versus closed_llama31_8b.yaml; no issue reports it",
        repair=repair,
        today=(evaluation(within(below=1.0), progress=progress),),
    )


RULESET: Final = next_round(
    training_5_0.RULESET,
    "5.1.0",
    *(rule for rule in training_2_0.REQUIRED if rule.key in (keys.SUBMISSION_ORG, keys.SUBMISSION_PLATFORM)),
    dropped=(keys.BERT, "stable_diffusion"),
    benchmarks=[
        training_4_0.by_samples_or_epochs(LLAMA31_8B),
        FLUX1,
        # training_policies pull request 563 changed the schedule; the new one is not fully known.
        replace(_405B, evaluation_interval=None, closed_keys=replaced(_405B.closed_keys, DECAY_405B)),
    ],
    defects=(
        training_4_0.open_counts_epochs("5.1.0", LLAMA2_70B_LORA),
        training_4_0.open_counts_epochs("5.1.0", LLAMA31_405B),
        open_8b_unpassable(
            "5.1.0",
            Repair(
                file="training_5.1.0/open_llama31_8b.yaml",
                text="""'epoch_num' in v['metadata']"
    ATLEAST_ONE_CHECK: "v['value'] < 1.0\"""",
                by="""('epoch_num' in v['metadata']) | ('samples_count' in v['metadata'])"
    ATLEAST_ONE_CHECK: "v['value'] > 0.0\"""",
            ),
            keys.EPOCH_NUM,
        ),
    ),
    last_month="2025-10",
)
