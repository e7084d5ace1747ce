"""Whole card of a method: its data, and what the code says of it."""

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields

from judging.ground.errors import UsageError, nearest
from timedrun.methods import REGISTRY
from timedrun.methods.method import PLACES, Hooks, Method
from timedrun.runner.method_reference import class_of
from timedrun.runner.storage import method_sources
from timedrun.runner.storage.method_cards import MethodCard, cards


def find_card(name: str) -> MethodCard:
    """Return the card of a method or setting. Raise UsageError, with the nearest name, if there is none."""
    known = {known: card for known, card in cards().items() if known in REGISTRY or card.setting}
    if name not in known:
        near = nearest(name, known)
        raise UsageError(f"there is no method '{name}'.{near} `timedrun show methods` lists them.")
    return known[name]


def places(method: type[Method]) -> list[str]:
    """Return the places of a training loop at which a method acts: those that the hooks of its module override."""
    own = [kind for kind in vars(sys.modules[method.__module__]).values() if isinstance(kind, type)]
    hooks = [kind for kind in own if issubclass(kind, Hooks) and kind.__module__ == method.__module__]
    hooks.append(method._hooks)
    return [place for place in PLACES if any(getattr(kind, place) is not getattr(Hooks, place) for kind in hooks)]


def settings(method: type[Method]) -> list[str]:
    """Return the settings of a method as "name=default", a required one as "name (required)"."""
    defaults = {field.name: field.default for field in fields(method) if field.default is not MISSING}
    required = {field.name for field in fields(method) if field.default is field.default_factory}
    return [
        f"{name} (required)" if name in required else f"{name}={json.dumps(defaults.get(name, '...'), default=str)}"
        for name in [field.name for field in fields(method)]
    ]


def own_rows(reference: str) -> list[tuple[str, str]]:
    """Return what the class of a method `module:Class` of the user's says of it, as `rows`; the first is its title.
    Raises UsageError as `class_of`."""
    method_sources.name_by_user(reference)
    kind = class_of(reference)
    files, sha256 = method_sources.require_source(reference)
    text = inspect.cleandoc(kind.__doc__ or "")
    text = "" if text.startswith(f"{kind.__name__}(") else text  # of a dataclass without one
    title, _, rest = text.partition("\n")
    facts = [
        ("title", title or kind.__qualname__),
        ("summary", " ".join(rest.split())),
        *_rows_of_class(kind, kind.clashes),
        ("source", method_sources.named_files(files)),
        ("sha256", sha256),
    ]
    return [(subject, text) for subject, text in facts if text]


def _rows_of_class(method: type[Method], clashing: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        ("stage", method.stage.name.lower()),
        ("places", ", ".join(["model"] * (method.model is not Method.model) + places(method))),
        ("settings", ", ".join(settings(method)) or "none"),
        ("clashes", "; ".join(f"{other}: {why}" for other, why in clashing.items())),
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
        facts += _rows_of_class(REGISTRY[card.name], clashes(card.name))
    facts += [
        ("tasks", card.tasks),
        ("constraints", card.constraints),
        ("interactions", "; ".join(f"{other}: {text}" for other, text in card.interactions.items())),
        ("published", "; ".join(map(str, card.published))),
        ("paper", "; ".join(map(str, card.papers))),
        ("notes", card.notes),
    ]
    return [(subject, text) for subject, text in facts if text]
