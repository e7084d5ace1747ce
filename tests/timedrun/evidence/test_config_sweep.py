"""A sweep's plan, sides and refusals."""

from dataclasses import replace

import pytest

from image_classification.configs import cifar10_resnet8_baseline, digits_baseline
from judging.ground.errors import UsageError
from language_model.configs import topics_baseline
from language_model.gpt.configs import openwebtext_methods
from timedrun.evidence.config_race import ConfigRequest
from timedrun.evidence.config_sides import ConfigSide
from timedrun.evidence.config_sweep import Lengths, planned_sides, stretched_sides
from timedrun.racing.plan import Rounds
from timedrun.racing.race_file import Budget


def test_each_benchmark_stretches_its_schedule_and_evaluates_at_the_end():
    image = cifar10_resnet8_baseline().stretched(0.5)
    assert image.total_epochs == 4 and (image.evaluation.first, image.evaluation.every) == (4, 4)
    assert digits_baseline().stretched(2).total_epochs == 12  # not the 40 of max_epochs
    bert = topics_baseline().stretched(0.25)
    assert (bert.schedule.steps, bert.schedule.warmup_steps, bert.max_samples) == (200, 12, 200 * 16)
    gpt = openwebtext_methods().stretched(0.1)
    assert (gpt.schedule.steps, gpt.total_samples) == (1400, 1400 * 512)
    assert [getattr(method, "steps", None) for method in gpt.methods] == [None, 1400]


def test_the_sides_are_each_config_at_each_length_once():
    config = cifar10_resnet8_baseline()
    base = ConfigSide(label="base", config=config)
    other = ConfigSide(label="other", config=replace(config, name="other", global_batch=50))
    sides, budgets = stretched_sides([base, other, base], Lengths([1.0, 0.5], [2.0]))
    assert [side.label for side in sides] == ["base x0.5", "base x1", "base x2", "other x0.5", "other x1"]
    assert budgets["other_x0.5"] == Budget(curve="other", ratio=0.5)
    with pytest.raises(UsageError, match="at 0.01 of its schedule"):
        stretched_sides([base], Lengths([0.01]))
    for ratios, more in (([1.0, 1.0], []), ([0.5], [1.0, 1.0000001])):
        with pytest.raises(UsageError, match="_x1; give the ratio once"):
            stretched_sides([other, base], Lengths(ratios, more))


def test_an_ablation_has_the_bare_config_first():
    rounds = Rounds(runs=1)
    request = ConfigRequest(
        verb="race", benchmark="image_classification", configs=["baseline", "methods"], ablate=True, rounds=rounds
    )
    _, sides, budgets = planned_sides(request, Lengths([1.0]))
    names = [budget.curve for budget in budgets.values()]
    assert names[:2] == ["digits_baseline", "digits_methods"] and "digits_methods-blurpool" in names
    assert "digits_baseline+ema" in names and len(sides) == len({*names})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["image_classification", "baseline", "--ratios", "1"], "is `timedrun run --runs N`"),
        (["image_classification", "baseline", "--ratios", "0.01", "1"], "at 0.01 of its schedule"),
        (["--ratios", "1"], "name a benchmark and configs"),
    ],
)
def test_what_is_no_sweep_is_refused(words, message, refused):
    assert message in refused("race", *words)
