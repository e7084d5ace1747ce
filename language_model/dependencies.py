"""Import of optional dependencies."""

import importlib
import sys
from types import ModuleType

from judging.ground.errors import UsageError


def require(name: str, failure: str) -> ModuleType:
    """Import the module `name`. Raises UsageError, beginning with `failure`, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{failure}: {package} is not installed; pip install 'timedrun[language]'") from error


def importable(name: str) -> bool:
    """Return True if the module `name` can be imported; if not, no part of it stays imported."""
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except Exception:  # RuntimeError if operators are missing, ImportError if it is absent
        for module in set(sys.modules) - before:
            if module.split(".")[0] == name:
                del sys.modules[module]
        return False
    return True
