"""Methods on BERT: the same steps on transformers' model and on timedrun's, or a refusal that says why."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from language_model import train as train_module
from language_model.build import build
from language_model.configs import ALL_SPEED_UPS, CPU_SPEED_UPS, BertRunConfig
from language_model.datasets import facts
from tests.one_rank import ALONE
from tests.timedrun.methods.small_run import example
from timedrun import methods

pytestmark = pytest.mark.usefixtures("transformers")


@pytest.fixture
def both(tiny_config: BertRunConfig) -> Callable[..., list[BertRunConfig]]:
    """Return a function for the tiny config with methods, on either implementation."""

    def both(*chosen: methods.Method) -> list[BertRunConfig]:
        reference = replace(tiny_config, methods=chosen)
        return [reference, replace(reference, implementation="timedrun", speed=CPU_SPEED_UPS)]

    return both


def test_methods_of_steps_and_weights_give_both_the_same_losses(both, baseline_losses, losses_of):
    chosen = methods.SAM(rho=0.2, interval=2), methods.SWA(start=0.3, end=0.6), methods.GradientClipping(threshold=0.3)
    reference, own = (losses_of(config) for config in both(*chosen))
    assert own == pytest.approx(reference, rel=1e-4)
    assert reference[-1] != pytest.approx(baseline_losses[-1], rel=1e-4)


def test_float8_gives_both_implementations_nearly_the_losses_without_it(both, baseline_losses, losses_of, monkeypatch):
    monkeypatch.setattr(train_module, "accuracy", lambda *_: 0.0)  # a CPU multiplies float8 slowly
    for config in both(methods.Float8()):
        evaluation = replace(config.evaluation, every=24, first=24)
        losses = losses_of(replace(config, max_samples=24, warm_up_steps=0, evaluation=evaluation))
        assert losses == pytest.approx(baseline_losses[:2], rel=0.03)
        assert losses != pytest.approx(baseline_losses[:2], rel=1e-5)


def test_float8_is_refused_where_a_fused_operation_passes_it_by(both):
    _, own = both(methods.Float8())
    assert not own.problems()
    problems = replace(own, speed=ALL_SPEED_UPS).problems()
    assert any("--speed.no-fused-dense-gelu-dense" in problem for problem in problems)


def test_both_implementations_are_evaluated_on_the_average_of_the_weights(both, losses_of, monkeypatch):
    steps: list[Tensor] = []
    evaluated: list[Tensor] = []

    def keep(seen: list[Tensor], model: nn.Module) -> float:
        seen.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        return 0.0

    after_step = methods.Stack.after_step
    monkeypatch.setattr(methods.Stack, "after_step", lambda self, model: (keep(steps, model), after_step(self, model)))
    monkeypatch.setattr(train_module, "accuracy", lambda model, *more: keep(evaluated, model))
    for config in both(methods.EMA(half_life=2, update_interval=2)):
        steps.clear()
        losses_of(config)
        average = steps[1]
        for number in range(3, 12, 2):
            average = (average + steps[number]) / 2
        torch.testing.assert_close(evaluated[-1], average)
        assert not torch.equal(average, steps[-1])


def test_layers_that_a_method_adds_depend_on_the_seed_alone(tiny_config, tiny_store):
    config = replace(tiny_config, methods=(methods.GatedLinearUnits(),))

    def weights(seed: int) -> dict[str, Tensor]:
        parts = build(replace(config, seed=seed), ALONE, facts(config.data, tiny_store), ALONE.device)
        return parts.model.state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    (gate, *_) = (name for name in first if name.endswith("gate.weight"))
    assert not torch.equal(first[gate], other[gate])


@pytest.mark.parametrize("name", methods.REGISTRY)
def test_methods_that_timedruns_bert_lacks_are_refused(name, both):
    problems = " ".join(both(example(name))[1].problems())
    usable, left_to_the_dry_run = {"sam", "gradient_clipping", "ema", "swa", "float8"}, {"tta"}
    assert (name in problems) is (name not in usable | left_to_the_dry_run)


@pytest.mark.parametrize("method", [methods.BlurPool(), methods.TTA()])
def test_methods_that_find_no_layer_are_refused_by_the_dry_run(method, tiny_config, tiny_store):
    config = replace(tiny_config, methods=(method,))
    assert not config.problems()
    with pytest.raises(methods.NoEffect, match=f"{method.name} found no"):
        build(config, ALONE, facts(config.data, tiny_store), torch.device("meta"))
