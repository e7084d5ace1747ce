"""The batch plan divides the global batch exactly, or names sizes that do."""

import pytest

from judging.ground.errors import UsageError
from timedrun.methods.training.batch_plan import BatchPlan


@pytest.mark.parametrize(
    ("micro_batch", "ranks", "local", "micro", "steps"),
    [(0, 1, 48, 48, 1), (0, 4, 12, 12, 1), (5, 4, 12, 5, 3), (6, 4, 12, 6, 2), (100, 2, 24, 24, 1)],
)
def test_a_micro_batch_fits_the_local_batch(micro_batch, ranks, local, micro, steps):
    plan = BatchPlan.of(48, micro_batch, ranks)
    assert (plan.global_batch, plan.local, plan.micro, plan.accumulation) == (48, local, micro, steps)


@pytest.mark.parametrize(
    ("batch", "micro", "ranks", "message"),
    [(2048, 0, 3, "--global-batch 2049"), (7, 0, 8, "--ranks 7"), (0, 0, 1, "at least 1"), (8, -1, 1, "--micro-batch")],
)
def test_an_impossible_division_names_valid_choices(batch, micro, ranks, message):
    with pytest.raises(UsageError, match=message):
        BatchPlan.of(batch, micro, ranks)
