"""Import of optional dependencies."""

import importlib
from types import ModuleType

from judging.ground.errors import UsageError


def require(name: str, failure: str) -> ModuleType:
    """Import the module `name`. Raises UsageError, beginning with `failure`, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{failure}: {package} is not installed; pip install 'timedrun[language]'") from error
