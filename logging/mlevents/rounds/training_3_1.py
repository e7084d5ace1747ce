"""MLPerf Training v3.1, ruleset 3.1.0: adds Stable Diffusion, and with it progress counted in steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_3_0
from mlevents.rounds.constraint import within
from mlevents.rounds.image_benchmarks import STABLE_DIFFUSION
from mlevents.rounds.ruleset import RequiredKey, next_round, replaced


def counted_in(progress: str, required: Iterable[RequiredKey], *, epochs_too: bool = False) -> tuple[RequiredKey, ...]:
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


_UNET3D: Final = training_3_0.RULESET.benchmarks["unet3d"]

RULESET: Final = next_round(
    training_3_0.RULESET,
    "3.1.0",
    required=counted_in(keys.STEP_NUM, training_3_0.RULESET.required),
    # rcp_checker/training_3.1.0/rcps_unet3d.json counts samples where 3.0.0's counts epochs.
    benchmarks=[replace(_UNET3D, unit="samples", evaluation_interval=None), STABLE_DIFFUSION],
    defects=(training_3_0.open_gpt3_missing("3.1.0"),),
    last_month="2023-10",
)
