"""Measured effects of methods: the sweeps in results/, as rows of cards and as tables."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from timedrun.storage.benchmark_folders import ROOT
from timedrun.storage.method_cards import MethodCard

SWEEPS: Final = {
    "cifar10_ablation": "ResNet-8 on CIFAR-10, schedules of 4 (x0.5) and 8 epochs (x1)",
    "cifar10_methods_ablation": "airbench's recipe on CIFAR-10, schedules of 3 (x0.75), 4 (x1) and 6 epochs (x1.5)",
    "bert_ablation": "a small BERT on Python's help topics, 400 (x0.5) and 800 steps (x1)",
}
"""Folders of results/ whose tradeoff.json `timedrun tradeoff --json` wrote; not part of an installed package."""
NOTES: Final = {
    "cifar10_ablation": "Three seeds, one thread of a CPU, while another such run used the second core. Each row"
    " changes the baseline, whose rate and decay were tuned and stay as they are; settings are the published ones but"
    " for those it names. Differences are in percentage points, intervals at 95 % each, so of 62 points about three"
    " differ by chance. Regularization (mixing, cut-outs, RandAugment, SAM, stochastic depth) costs quality in a few"
    " epochs of a small network that does not overfit yet: this says nothing of long schedules.",
    "cifar10_methods_ablation": "Three seeds, two threads of an idle machine. The baseline is `cifar10_methods`, the"
    " config of the race to 90 %; each other row leaves one of its methods out or changes one setting, at 4 epochs, and"
    " keeps the rest, which was not tuned again. `methods_by_sgd.json` has the optimizer and the batch of"
    " `cifar10_baseline`, with the best of six settings at this length.",
    "bert_ablation": "Three seeds, one thread of a CPU whose other core was busy. The baseline is transformers' model"
    " with sdpa attention; `topics_methods` computes the same losses without padding, so that x0.5 of it ends before"
    " the baseline's shortest run does. Quality is the share of masked tokens that are predicted. LAMB's rate is that"
    " of `topics_lamb`.",
}


@dataclass(frozen=True)
class Effect:
    """Curve of a config with or without a method, compared with the baseline's."""

    sweep: str
    change: str
    """What differs from the baseline, as "+ema(half_life=8)" or "precision bf16"."""
    values: dict[str, Any]
    """As `timedrun tradeoff --json` writes them."""

    def is_about(self, card: MethodCard) -> bool:
        """Return True if the method or setting of `card` is all that differs."""
        if card.setting:
            return self.change.startswith(card.setting.removeprefix("--").partition(" --")[0])
        return re.fullmatch(rf"[+-]{card.name}(\(.*\))?", self.change) is not None

    @property
    def text(self) -> str:
        """The differences of quality at equal time, and the verdict."""
        gains = "; ".join(f"{_points(gain)} at x{gain['ratio']:g}" for gain in self.values["gains"])
        without = ", left out of the baseline" if self.change.startswith("-") else ""
        return f"{SWEEPS[self.sweep]}{without}: {gains}: {self.values['verdict']} (results/{self.sweep})"


def _points(gain: dict[str, Any]) -> str:
    """Return the difference of quality at equal time in percentage points with its interval."""
    one = gain["quality_at_equal_time"]
    if one is None:
        return "not measured"
    bounds = "" if one["low"] is None else f" [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"
    return f"{100 * one['mean']:+.1f} points{bounds} in the same time"


@cache
def sweeps() -> dict[str, dict[str, Any]]:
    """Return the sweeps that are there, by the name of their folder."""
    files = {name: ROOT / "results" / name / "tradeoff.json" for name in SWEEPS}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


def effects() -> list[Effect]:
    """Return the effects of all configs that differ from their sweep's baseline in one method or setting."""
    found = []
    for sweep, values in sweeps().items():
        baseline = values["baseline"]
        for curve in values["curves"][1:]:
            start = next((one for one in _names(baseline) if curve["label"].startswith(one)), None)
            if start is not None:
                found.append(Effect(sweep, curve["label"].removeprefix(start).strip(), curve))
    return found


def _names(baseline: str) -> list[str]:
    """Return the names under which a command may have named the baseline: whole, and without its dataset."""
    return [baseline, baseline.partition("_")[2]]


def table(name: str) -> list[str]:
    """Return the sweep `name` as a Markdown table, best first at its longest schedule."""
    values = sweeps()[name]
    header = "| config | length | quality | seconds | in the same time | same quality | verdict |"
    lines = [header, "|---|---|---|---|---|---|---|"]
    baseline, *rest = values["curves"]
    rest.sort(key=lambda curve: -(curve["gains"][-1]["quality_at_equal_time"] or {"mean": -1.0})["mean"])
    for curve in (baseline, *rest):
        for place, gain in enumerate(curve["gains"]):
            cells = [f"`{curve['label']}`" if place == 0 else "", f"x{gain['ratio']:g}"]
            deviation = gain["quality_deviation"]
            cells.append(f"{100 * gain['quality']:.2f}" + (f" ± {100 * deviation:.2f} %" if deviation else " %"))
            cells.append(f"{60 * gain['minutes']:.1f}")
            compared = curve is not baseline
            cells += [_points(gain).removesuffix(" in the same time"), _sooner(gain)] if compared else ["", ""]
            cells.append(gain["verdict"] if compared else "baseline")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _sooner(gain: dict[str, Any]) -> str:
    one, reach = gain["speed_up"], gain["reach"]
    if one is None:
        return "not measured"

    def bound(value: float | None) -> str:
        if value is None:
            return f">{reach[1]:.2f}"
        return f"{value:.2f}" if value else f"<{reach[0]:.2f}"

    if gain["quality_at_equal_time"]["low"] is None:
        return f"{bound(one['mean'])}x"
    return f"{bound(one['mean'])}x [{bound(one['low'])}, {bound(one['high'])}]"
