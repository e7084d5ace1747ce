"""Selection of changes from planted step times: what pays is kept, also where changes need or hinder each other."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from timedrun.analysis.selection import Selection, Selector
from timedrun.analysis.step_times import StepTimes

Changes = frozenset[str]
NEEDED = {"b": "a"}


class Machine:
    """Times of sets of changes by a formula, with a noise of 1 % that differs from chunk to chunk."""

    def __init__(self, seconds: Callable[[Changes], float], losses: Callable[[Changes], float] = lambda _: 2.0) -> None:
        self.seconds, self.losses = seconds, losses
        self.largest = self.measurements = 0

    def measured(self, settings: Mapping[str, Changes], limited: bool) -> tuple[dict[str, StepTimes], dict[str, str]]:
        self.measurements += limited
        self.largest = max(self.largest, len(settings))
        times, failed = {}, {}
        for number, (name, one) in enumerate(settings.items()):
            if "broken" in one:
                failed[name] = "RuntimeError: planted"
                continue
            noise = (1 + 0.005 * ((chunk * 7 + number * 3) % 5 - 2) for chunk in range(10))
            chunks = tuple(self.seconds(one) * factor for factor in noise)
            times[name] = StepTimes((0.5,), (chunks,), 1, losses=(self.losses(one),))
        return times, failed


def select(machine: Machine, *changes: str, **options: object) -> Selection[Changes]:
    def changed(names: Sequence[str]) -> Changes:
        for name in names:
            if NEEDED.get(name, name) not in names:
                raise ValueError(f"{name} needs {NEEDED[name]}")
        return frozenset(names)

    return Selector(frozenset(), changes, changed, machine.measured, tolerance=1e-3, **options).run()  # type: ignore[arg-type]


def product(**factors: float) -> Callable[[Changes], float]:
    def seconds(changes: Changes) -> float:
        found = 1.0
        for name in changes:
            found *= factors.get(name, 1.0)
        return found

    return seconds


def test_what_pays_is_kept_and_the_rest_has_a_reason() -> None:
    losses = {"wrong": 2.1, "rounding": 2.0001}
    machine = Machine(
        product(fast=0.8, slow=1.2, wrong=0.1, rounding=0.5),
        lambda changes: next((losses[name] for name in sorted(changes) if name in losses), 2.0),
    )
    found = select(machine, "fast", "slow", "useless", "wrong", "rounding", "broken")
    assert found.kept == ["fast", "rounding"] and found.settings == {"fast", "rounding"}
    assert found.speed_up is not None and found.speed_up.ratio == pytest.approx(2.5, rel=0.02)
    assert found.loss == pytest.approx(5e-5)
    assert found.sentences[0].startswith("fast: 1.2") and found.sentences[0].endswith("kept")
    reasons = {name: one.reason for name, one in found.evidence.items()}
    assert reasons["slow"] == "slower with it" and reasons["useless"] == "no difference shown"
    assert reasons["wrong"] == "it changes the loss: 2.1 in place of 2 in the first steps"
    assert reasons["broken"] == "it fails: RuntimeError: planted"
    assert found.as_values()["kept"] == found.kept


def test_a_change_that_others_need_is_judged_with_them() -> None:
    """a alone is slower; b needs a, and pays more than a costs."""
    found = select(Machine(product(a=1.1, b=0.5)), "a", "b")
    assert found.kept == ["a", "b"] and found.evidence["a"].reason == "the others need it"
    assert found.evidence["b"].alone is None
    dear = select(Machine(product(a=1.1, b=0.97)), "a", "b")
    assert dear.speed_up is None or dear.speed_up.ratio < 1


def test_interactions_are_measured_again() -> None:
    """Each of c and d halves the time alone; together they are no faster than one."""

    def either(changes: Changes) -> float:
        return 0.5 if changes else 1.0

    found = select(Machine(either), "c", "d")
    assert len(found.kept) == 1 and found.speed_up is not None and found.speed_up.ratio == pytest.approx(2, rel=0.02)


def test_of_one_setting_the_fastest_change_is_kept() -> None:
    machine = Machine(product(**{"workers 1": 0.9, "workers 2": 0.6, "workers 3": 0.7}))
    found = select(machine, "workers 1", "workers 2", "workers 3", setting=lambda change: change.split()[0])
    assert found.kept == ["workers 2"]
    assert found.evidence["workers 3"].reason == "workers 2 is faster"


def test_slow_starts_are_tried_last_and_groups_fit_into_memory() -> None:
    machine = Machine(product(fast=0.8, compile=0.7, other=0.9))
    found = select(machine, "compile", "fast", "other", slow_starts=["compile"], together=2)
    assert set(found.kept) == {"fast", "other", "compile"} and machine.largest == 2
    assert found.evidence["compile"].alone is None and found.evidence["compile"].within is not None


def test_nothing_to_gain_leaves_the_settings() -> None:
    found = select(Machine(product()), "useless")
    assert found.settings == frozenset() and found.kept == [] and found.speed_up is None


def test_settings_that_cannot_be_measured_or_change_the_loss_only_together_are_refused() -> None:
    with pytest.raises(ValueError, match="given settings cannot be measured: RuntimeError: planted"):
        Selector(frozenset({"broken"}), ["a"], frozenset, Machine(product()).measured, tolerance=1e-3).run()
    together = Machine(product(c=0.5, d=0.5), lambda changes: 3.0 if len(changes) == 2 else 2.0)
    with pytest.raises(ValueError, match="together, the changes c, d change the loss: 3 in place of 2"):
        select(together, "c", "d")


@pytest.mark.parametrize("measurements", [1, 2, 3, 4])
def test_a_search_that_runs_out_of_time_keeps_what_was_measured(measurements: int) -> None:
    machine = Machine(product(fast=0.8, useless=1.0, compile=0.5))
    expired = lambda: machine.measurements >= measurements  # noqa: E731
    found = select(machine, "fast", "useless", "compile", slow_starts=["compile"], expired=expired)
    assert "fast" in found.kept and found.speed_up is not None
    assert ("useless" in found.kept) is (measurements < 3) and ("compile" in found.kept) is (measurements > 3)
