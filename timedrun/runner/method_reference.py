"""References to methods in configs: a name in REGISTRY, or `module:Class`, whose source file has a digest."""

import importlib
import sys
from pathlib import Path
from typing import Any

from judging.ground.errors import UsageError, nearest
from timedrun.methods import REGISTRY, Method
from timedrun.runner.storage import method_sources

_known: dict[str, tuple[type[Method], str]] = {}
"""Classes that this process uses, with the digest of their source when it was imported: a later edit is not in them."""


def reference_of(kind: type[Method]) -> str:
    """Return the name of a method's class in configs."""
    return kind.name if REGISTRY.get(kind.name) is kind else f"{kind.__module__}:{kind.__qualname__}"


def recorded(method: Method) -> dict[str, Any]:
    """Return the entries that name the method in a dumped config: "method" and, of one that timedrun does not ship, the
    SHA-256 of its source. Raise UsageError if it has none."""
    kind = type(method)
    reference = reference_of(kind)
    if reference in REGISTRY:
        return {"method": reference}
    if reference not in _known:
        file = getattr(sys.modules[kind.__module__], "__file__", None)
        if file is None:
            raise UsageError(f"{reference} has no source file, so no run can record it; define it in a module.")
        sources = method_sources.source_files(kind.__module__, Path(file))
        _known[reference] = kind, method_sources.digest_of(sources)
    return {"method": reference, method_sources.SHA256: _known[reference][1]}


def take_class(values: dict[str, Any]) -> type[Method]:
    """Take the entries that name a method out of those of a config; return its class, as `class_of`."""
    return class_of(str(values.pop("method", None)), values.pop(method_sources.SHA256, None))


def class_of(reference: str, sha256: str | None = None) -> type[Method]:
    """Return the class of a method by its name in REGISTRY, or `module:Class`.

    No module is imported before its source is known to define such a class and to have the digest `sha256`, if it is
    given: names come from config files of other people, too.

    Raises UsageError if there is none.
    """
    if reference in REGISTRY:
        return REGISTRY[reference]
    if not method_sources.REFERENCE.fullmatch(reference):
        near, names = nearest(reference, REGISTRY), ", ".join(REGISTRY)
        raise UsageError(f"there is no method '{reference}'.{near} Methods: {names}; your own is module:Class.")
    if reference in _known and sha256 in (None, _known[reference][1]):
        return _known[reference][0]
    files, sha256 = method_sources.require_source(reference, sha256)
    module, _, attribute = reference.partition(":")
    path = files[module]
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise UsageError(f"{path} cannot be imported ({type(error).__name__}: {error}); nothing was run.") from error
    if not isinstance(kind, type) or not issubclass(kind, Method):
        raise UsageError(f"{reference} in {path} is not a timedrun.methods.Method; nothing was run.")
    if REGISTRY.get(kind.name) is kind:
        raise UsageError(f"{reference} is timedrun's own method; write '{kind.name}'.")
    if kind.name in REGISTRY:
        raise UsageError(f"{reference} calls itself '{kind.name}', as a method of timedrun; leave out name=... there.")
    _known[reference] = kind, sha256
    return kind
