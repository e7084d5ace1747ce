"""Whole card of a method: its data, what the code says of it, and what was measured. `python -m timedrun.methods.card
docs/methods.md` writes all of them into that page."""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError, nearest
from timedrun.methods import REGISTRY, measured_effects
from timedrun.methods.method import PLACES, Hooks, Method
from timedrun.storage.benchmark_folders import ROOT
from timedrun.storage.method_cards import MethodCard, cards

COSTS: Final = ROOT / "results" / "method_cost.json"
"""Written by benchmarks/method_cost.py; not part of an installed package."""
BEGIN: Final = "<!-- begin of the cards: written by `python -m timedrun.methods.card docs/methods.md` -->"
END: Final = "<!-- end of the cards -->"


def find_card(name: str) -> MethodCard:
    """Return the card of a method or setting. Raise UsageError, with the nearest name, if there is none."""
    known = {known: card for known, card in cards().items() if known in REGISTRY or card.setting}
    if name not in known:
        near = nearest(name, known)
        raise UsageError(f"there is no method '{name}'.{near} `timedrun list methods` lists them.")
    return known[name]


def places(method: type[Method]) -> list[str]:
    """Return the places of a training loop at which a method acts: those that the hooks of its module override."""
    own = [kind for kind in vars(sys.modules[method.__module__]).values() if isinstance(kind, type)]
    hooks = [kind for kind in own if issubclass(kind, Hooks) and kind.__module__ == method.__module__]
    return [place for place in PLACES if any(getattr(kind, place) is not getattr(Hooks, place) for kind in hooks)]


def settings(method: type[Method]) -> list[str]:
    """Return the settings of a method as "name=default", a required one as "name (required)"."""
    return [
        f"{one.name} (required)" if one.default is MISSING else f"{one.name}={json.dumps(one.default)}"
        for one in fields(method)
    ]


def clashes(name: str) -> dict[str, str]:
    """Return the methods that cannot be combined with the method `name`, and the reason."""
    others = {other: kind.clashes[name] for other, kind in REGISTRY.items() if name in kind.clashes}
    return {**others, **REGISTRY[name].clashes}


def rows(card: MethodCard) -> list[tuple[str, str]]:
    """Return everything known of a method, each as its subject and a text."""
    found = [("summary", card.summary), ("changes", card.changes), ("acts", card.acts)]
    if card.setting:
        found.append(("set by", card.setting))
    else:
        method = REGISTRY[card.name]
        at = places(method)
        found += [
            ("stage", method.stage.name.lower()),
            ("places", ", ".join(["model"] * (method.model is not Method.model) + at)),
            ("settings", ", ".join(settings(method)) or "none"),
            ("clashes", "; ".join(f"{other}: {why}" for other, why in clashes(card.name).items())),
        ]
    found += [
        ("tasks", card.tasks),
        ("constraints", card.constraints),
        ("interactions", "; ".join(f"{other}: {text}" for other, text in card.interactions.items())),
        *measured(card.name),
        *measured_here(card),
        ("published", "; ".join(map(str, card.published))),
        ("paper", "; ".join(map(str, card.papers))),
        ("notes", card.notes),
    ]
    return [(subject, text) for subject, text in found if text]


def measured(name: str) -> list[tuple[str, str]]:
    """Return the measured cost of a method; nothing for one without a measurement."""
    if not COSTS.is_file():
        return []
    costs: dict[str, Any] = json.loads(COSTS.read_text(encoding="utf-8"))
    one = costs["methods"].get(name)
    if one is None:
        return []
    inference = [f"{_change(one, 'parameters')}, {_change(one, 'flops')}"]
    inference.append(f"latency {_times(one['latency'])}" if "latency" in one else "the layers are the same")
    found = [("inference", f"{one['model']}: {'; '.join(inference)}")]
    if "step" in one:
        found.append(("cost per step", f"{one['step']['model']}: {_times(one['step'])}"))
    if "augment_seconds_per_image" in one:
        milliseconds = one["augment_seconds_per_image"] * 1e3
        found.append(("cost of augmenting", f"{milliseconds:.2f} ms per image of 224 pixels, one thread of a CPU"))
    return [(subject, f"{text} (results/{COSTS.name})") for subject, text in found]


def measured_here(card: MethodCard) -> list[tuple[str, str]]:
    """Return the measured effects of a method in the sweeps of results/."""
    return [("measured here", one.text) for one in measured_effects.effects() if one.is_about(card)]


def _change(one: dict[str, Any], what: str) -> str:
    without, with_method = one[what]
    number = f"{with_method:,} parameters" if what == "parameters" else f"{with_method / 1e9:.2f} GFLOPs"
    return f"{number} ({f'{with_method / without - 1:+.2%}' if with_method != without else 'unchanged'})"


def _times(ratio: dict[str, Any]) -> str:
    low, high = ratio["quartiles"]
    return f"{ratio['median']:.2f} times that without it, quartiles {low:.2f} to {high:.2f}"


def page() -> str:
    """Return the cards of all methods and settings as Markdown, in the order in which a stack applies them."""
    shown = [cards()[name] for name in sorted(REGISTRY, key=lambda name: REGISTRY[name].stage) if name in cards()]
    options = [card for card in cards().values() if card.setting]
    lines = ["| method | stage | |", "|---|---|---|"]
    lines += [
        f"| [`{card.name}`](#{card.name}) | {REGISTRY[card.name].stage.name.lower()} | {card.summary} |"
        for card in shown
    ]
    lines += ["", "Settings of a config that are used like methods:", "", "| setting | option | |", "|---|---|---|"]
    lines += [f"| [`{card.name}`](#{card.name}) | `{card.setting}` | {card.summary} |" for card in options]
    for name, title in measured_effects.SWEEPS.items():
        if name in measured_effects.sweeps():
            lines += ["", f"### Measured: {title}", "", measured_effects.NOTES[name], "", *measured_effects.table(name)]
    for card in [*shown, *options]:
        lines += ["", f"### {card.name}", "", f"**{card.title}.** {card.summary}", ""]
        lines += [f"- {subject}: {text}" for subject, text in rows(card)[1:]]
    return "\n".join(lines)


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
