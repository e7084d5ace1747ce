"""Write the cards of all methods into docs/methods.md: their data, what the code says of them, and measurements.

Usage: python -m benchmarks.method_cards docs/methods.md
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError
from judging.pages.table import Table
from timedrun.methods import REGISTRY
from timedrun.runner.method_card import rows
from timedrun.runner.storage.benchmark_folders import ROOT
from timedrun.runner.storage.method_cards import MethodCard, cards

BEGIN: Final = "<!-- begin of the cards: written by `python -m benchmarks.method_cards docs/methods.md` -->"
END: Final = "<!-- end of the cards -->"
COSTS: Final = ROOT / "results" / "method_cost.json"
"""Measured by benchmarks/method_cost.py of commit ce3b554."""
SWEEPS: Final = {
    "cifar10_ablation": "ResNet-8 on CIFAR-10, schedules of 4 (x0.5) and 8 epochs (x1)",
    "cifar10_methods_ablation": "airbench's recipe on CIFAR-10, schedules of 3 (x0.75), 4 (x1) and 6 epochs (x1.5)",
    "bert_ablation": "a small BERT on Python's help topics, 400 (x0.5) and 800 steps (x1)",
}
"""Folders of results/ whose tradeoff.json `timedrun compare --json` wrote."""


def costs(name: str) -> Iterator[tuple[str, str]]:
    """Yield the measured costs of a method, each as its subject and a text."""
    cost: dict[str, Any] | None = json.loads(COSTS.read_text(encoding="utf-8"))["methods"].get(name)
    if cost is None:
        return
    latency = f"latency {_times(cost['latency'])}" if "latency" in cost else "the layers are the same"
    size = f"{_change(cost['parameters'], '{:,} parameters', 1)}, {_change(cost['flops'], '{:.2f} GFLOPs', 1e9)}"
    measured = {"inference": f"{cost['model']}: {size}; {latency}"}
    if "step" in cost:
        measured["cost per step"] = f"{cost['step']['model']}: {_times(cost['step'])}"
    if "augment_seconds_per_image" in cost:
        milliseconds = cost["augment_seconds_per_image"] * 1e3
        measured["cost of augmenting"] = f"{milliseconds:.2f} ms per image of 224 pixels, one thread of a CPU"
    yield from ((subject, f"{text} (results/{COSTS.name})") for subject, text in measured.items())


def _change(without_and_with: list[float], text: str, unit: float) -> str:
    without, value = without_and_with
    change = f"{value / without - 1:+.2%}" if value != without else "unchanged"
    return f"{text.format(value if unit == 1 else value / unit)} ({change})"


def _times(ratio: dict[str, Any]) -> str:
    low, high = ratio["quartiles"]
    return f"{ratio['median']:.2f} times that without it, quartiles {low:.2f} to {high:.2f}"


def effects(card: MethodCard) -> Iterator[tuple[str, str]]:
    """Yield the effects of a method in the sweeps of results/, by curves that differ from the baseline in it only."""
    for sweep, title in SWEEPS.items():
        values = json.loads((ROOT / "results" / sweep / "tradeoff.json").read_text(encoding="utf-8"))
        names = (values["baseline"], values["baseline"].partition("_")[2])  # a command may leave out the dataset
        for curve in values["curves"][1:]:
            start = next((name for name in names if curve["label"].startswith(name)), None)
            if start is None:
                continue
            change = curve["label"].removeprefix(start).strip()
            if card.setting:
                about = change.startswith(card.setting.removeprefix("--").partition(" --")[0])
            else:
                about = re.fullmatch(rf"[+-]{card.name}(\(.*\))?", change) is not None
            if about:
                gains = "; ".join(f"{_points(gain)} at x{gain['ratio']:g}" for gain in curve["gains"])
                without = ", left out of the baseline" if change.startswith("-") else ""
                yield "measured here", f"{title}{without}: {gains}: {curve['verdict']} (results/{sweep})"


def _points(gain: dict[str, Any]) -> str:
    """Return the difference of quality at equal time in percentage points with its interval."""
    points = gain["quality_at_equal_time"]
    if points is None:
        return "not measured"
    bounds = "" if points["low"] is None else f" [{100 * points['low']:+.1f}, {100 * points['high']:+.1f}]"
    return f"{100 * points['mean']:+.1f} points{bounds} in the same time"


def page() -> str:
    """Return the cards of all methods and settings as Markdown, in the order in which a stack applies them."""
    shown = [cards()[name] for name in sorted(REGISTRY, key=lambda name: REGISTRY[name].stage)]
    options = [card for card in cards().values() if card.setting]
    stages = [[_link(card), REGISTRY[card.name].stage.name.lower(), card.summary] for card in shown]
    settings = [[_link(card), f"`{card.setting}`", card.summary] for card in options]
    lines = Table(["method", "stage", ""], stages).markdown()
    lines += ["", "Settings of a config that are used like methods:", ""]
    lines += Table(["setting", "option", ""], settings).markdown()
    for card in [*shown, *options]:
        lines += ["", f"### {card.name}", "", *textwrap.wrap(f"**{card.title}.** {card.summary}", 100), ""]
        facts = [*rows(card)[1:], *costs(card.name), *effects(card)]
        lines += Table(["", ""], [[subject, text.replace("|", "\\|")] for subject, text in facts]).markdown()
    return "\n".join(lines)


def _link(card: MethodCard) -> str:
    return f"[`{card.name}`](#{card.name})"


def with_cards(text: str) -> str:
    """Return the Markdown page `text` with the cards between its two marks brought up to date."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the page lacks the marks {BEGIN} and {END}; nothing was written; add them where cards go.")
    return f"{before}{BEGIN}\n\n{page()}\n\n{END}{after}"


if __name__ == "__main__":
    (path,) = map(Path, sys.argv[1:])
    path.write_text(with_cards(path.read_text(encoding="utf-8")), encoding="utf-8")
