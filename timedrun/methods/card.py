"""Whole card of a method: its data, and what the code says of it."""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, fields

from judging.ground.errors import UsageError, nearest
from timedrun.methods import REGISTRY
from timedrun.methods.method import PLACES, Hooks, Method
from timedrun.storage.method_cards import MethodCard, cards


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
        f"{field.name} (required)" if field.default is MISSING else f"{field.name}={json.dumps(field.default)}"
        for field in fields(method)
    ]


def clashes(name: str) -> dict[str, str]:
    """Return the methods that cannot be combined with the method `name`, and the reason."""
    others = {other: kind.clashes[name] for other, kind in REGISTRY.items() if name in kind.clashes}
    return {**others, **REGISTRY[name].clashes}


def rows(card: MethodCard) -> list[tuple[str, str]]:
    """Return everything known of a method, each as its subject and a text."""
    facts = [("summary", card.summary), ("changes", card.changes), ("acts", card.acts)]
    if card.setting:
        facts.append(("set by", card.setting))
    else:
        method = REGISTRY[card.name]
        at = places(method)
        facts += [
            ("stage", method.stage.name.lower()),
            ("places", ", ".join(["model"] * (method.model is not Method.model) + at)),
            ("settings", ", ".join(settings(method)) or "none"),
            ("clashes", "; ".join(f"{other}: {why}" for other, why in clashes(card.name).items())),
        ]
    facts += [
        ("tasks", card.tasks),
        ("constraints", card.constraints),
        ("interactions", "; ".join(f"{other}: {text}" for other, text in card.interactions.items())),
        ("published", "; ".join(map(str, card.published))),
        ("paper", "; ".join(map(str, card.papers))),
        ("notes", card.notes),
    ]
    return [(subject, text) for subject, text in facts if text]
