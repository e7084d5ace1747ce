"""Selection of changes from planted step times: what pays is kept, also where changes need or hinder each other."""

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from timedrun.evidence.analysis import own_step
from timedrun.evidence.analysis.own_step import TrainStep, choose, suggested
from timedrun.evidence.analysis.selection import Selection, Selector
from timedrun.evidence.analysis.step_times import StepTimes
from timedrun.evidence.preflight.dry_run import SimulatedClock

Changes = frozenset[str]
NEEDED = {"b": "a"}


class Machine:
    """Times of sets of changes by a formula, with a noise of 1 % that differs from chunk to chunk."""

    def __init__(self, seconds: Callable[[Changes], float], losses: Callable[[Changes], float] = lambda _: 2.0) -> None:
        self.seconds, self.losses = seconds, losses
        self.measurements = 0

    def measured(self, settings: Mapping[str, Changes], limited: bool) -> tuple[dict[str, StepTimes], dict[str, str]]:
        self.measurements += limited
        times, failed = {}, {}
        for number, (name, one) in enumerate(settings.items()):
            if "broken" in one:
                failed[name] = "RuntimeError: planted"
                continue
            noise = (1 + 0.005 * ((chunk * 7 + number * 3) % 5 - 2) for chunk in range(10))
            chunks = tuple(self.seconds(one) * factor for factor in noise)
            times[name] = StepTimes((0.5,), (chunks,), losses=(self.losses(one),))
        return times, failed


def select(machine: Machine, *changes: str, **options: object) -> Selection[Changes]:
    def changed(names: Sequence[str]) -> Changes:
        for name in names:
            if NEEDED.get(name, name) not in names:
                raise ValueError(f"{name} needs {NEEDED[name]}")
        return frozenset(names)

    return Selector(frozenset(), changes, changed, machine.measured, tolerance=1e-3, **options).run()


def product(**factors: float) -> Callable[[Changes], float]:
    return lambda changes: math.prod(factors.get(name, 1.0) for name in changes)


def test_what_pays_is_kept_and_the_rest_has_a_reason():
    losses = {"wrong": 2.1, "rounding": 2.0001}
    machine = Machine(
        product(fast=0.8, slow=1.2, wrong=0.1, rounding=0.5),
        lambda changes: next((losses[name] for name in sorted(changes) if name in losses), 2.0),
    )
    selection = select(machine, "fast", "slow", "useless", "wrong", "rounding", "broken")
    assert selection.kept == ["fast", "rounding"] and selection.settings == {"fast", "rounding"}
    assert selection.speed_up is not None and selection.speed_up.value == pytest.approx(2.5, rel=0.02)
    assert selection.loss == pytest.approx(5e-5)
    assert selection.sentences[0].startswith("fast: 1.2") and selection.sentences[0].endswith("kept")
    reasons = {name: value.reason for name, value in selection.evidence.items()}
    assert reasons["slow"] == "slower with it" and reasons["useless"] == "no difference shown"
    assert reasons["wrong"] == "it changes the loss: 2.1 in place of 2 in the first steps"
    assert reasons["broken"] == "it fails: RuntimeError: planted"
    assert selection.as_values()["kept"] == selection.kept


def spoilt(changes: Changes) -> float:
    """Two that spoil the loss together only."""
    return 3.0 if {"c", "d"} <= changes else 2.0


@pytest.mark.parametrize(
    ("machine", "changes", "kept", "reasons"),
    [
        # a alone is slower; b needs a, and pays more than a costs, or does not
        (Machine(product(a=1.1, b=0.5)), "a b", ["a", "b"], {"a": "the others need it", "b": ""}),
        (Machine(product(a=1.1, b=1.0)), "a b", [], {"a": "slower with it"}),
        # each halves the time alone; together they are no faster than one
        (Machine(lambda changes: 0.5 if changes else 1.0), "c d", ["c"], {"d": "no difference shown"}),
        # of one setting, whose name ends with a digit
        (Machine(product(w1=0.9, w2=0.6, w3=0.7)), "w1 w2 w3", ["w2"], {"w3": "w2 is faster"}),
        (
            Machine(product(c=0.5, d=0.5, e=0.5), spoilt),
            "c d e",
            ["c", "e"],
            {"d": "with the others, it changes the loss: 3 in place of 2 in the first steps"},
        ),
    ],
)
def test_changes_that_need_or_hinder_each_other_are_judged_together(machine, changes, kept, reasons):
    selection = select(machine, *changes.split(), setting=lambda change: change.rstrip("123"))
    assert selection.kept == kept
    assert {name: selection.evidence[name].reason for name in reasons} == reasons
    assert (selection.speed_up is not None) == bool(kept)


def test_settings_that_cannot_be_measured_are_refused():
    with pytest.raises(ValueError, match="given settings cannot be measured, in turns with a: RuntimeError: planted"):
        Selector(frozenset({"broken"}), ["a"], frozenset, Machine(product()).measured, tolerance=1e-3).run()


@pytest.mark.parametrize(("measurements", "kept"), [(0, []), (1, ["fast"]), (2, ["fast", "double"]), (3, ["fast"])])
def test_a_search_that_runs_out_of_time_keeps_what_helped_alone(measurements, kept):
    """double does what fast does, which only the measurement of both shows; b needs fast."""
    machine = Machine(lambda changes: 0.8 if changes else 1.0)
    expired = lambda: machine.measurements >= measurements  # noqa: E731
    selection = select(machine, "fast", "double", expired=expired)
    assert selection.kept == kept
    together = Machine(product(c=0.5, d=0.5), spoilt)
    with pytest.raises(ValueError, match="the step with c, d changes the loss: 3 in place of 2"):
        select(together, "c", "d", expired=lambda: together.measurements >= 2)


def test_the_fastest_of_a_users_builds_is_chosen_with_methods_joined_and_the_search_ends_in_time():
    clock = SimulatedClock(0.0)

    def build(methods: tuple[str, ...] = (), precision: str = "fp32", workers: int = 0) -> TrainStep:
        if precision == "none":
            raise RuntimeError("planted")

        def train_step() -> float:
            clock.now += 1 / (1 + len(methods)) / (1 + (precision == "bf16")) / (1 + workers)
            return 2.0 + 0.01 * (precision == "bf16") + 0.1 * (precision == "tf32")

        return train_step

    changes = {"a": {"methods": ("a",)}, "b": {"methods": ("b",)}, "bf16": {"precision": "bf16"}}
    selection = choose(build, changes, monotonic=clock, minutes=60)
    assert selection.settings == {"methods": ("a", "b"), "precision": "bf16"}  # 0.5 % is the rounding of 16 bits
    assert selection.report("mine").splitlines()[-2].startswith("mine: 1000.00 ms per step; chosen: 166.67 ms: 6.000x")
    late = choose(build, changes, monotonic=clock, minutes=0.5)
    assert late.kept == ["a"] and late.unmeasured == ["b", "bf16"]
    changes = {"1": {"workers": 1}, "3": {"workers": 3}, "tf32": {"precision": "tf32"}, "none": {"precision": "none"}}
    reasons = [of.reason for of in choose(build, changes, monotonic=clock).evidence.values()]
    assert reasons[:2] == ["3 is faster", ""] and reasons[2].startswith("it changes the loss")
    assert reasons[3] == "it fails: RuntimeError: planted"


def test_what_is_tried_follows_from_the_arguments_and_the_hardware(monkeypatch):
    def build(precision: str = "fp32", tf32: bool = False, workers: int = 0, batch: int = 64) -> TrainStep:
        return lambda: 0.0

    def tried(capability: tuple[int, int] | None, emulates: bool = False) -> dict[str, dict[str, object]]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(own_step, "emulated", lambda *_: emulates)
        return suggested(build)

    monkeypatch.setattr(own_step, "usable_cores", lambda: 2)
    workers = {f"workers {number}": {"workers": number} for number in (1, 2)}
    assert tried(None) == {"precision bf16": {"precision": "bf16"}} | workers
    assert tried(None, emulates=True) == workers
    assert tried((7, 0)) == {"precision fp16": {"precision": "fp16"}} | workers
    assert list(tried((9, 0))) == ["precision bf16", "tf32 True", *workers]
    with pytest.raises(ValueError, match="build declares none of methods, channels_last"):
        choose(lambda batch: lambda: 0.0)
