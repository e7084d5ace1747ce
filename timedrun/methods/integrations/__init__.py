"""Methods inside other libraries' training loops; each module imports its library."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PAIR: Final = (
    "torchvision fits only the torch that it was built for: `pip install --force-reinstall torch torchvision"
    " --index-url https://download.pytorch.org/whl/cpu` (or cu130, ...) takes both from one index; where nothing needs"
    " it, `pip uninstall torchvision` is enough."
)
MISMATCH: Final = "operator torchvision::"
"""In the error of such a torchvision's import, by itself, timm, transformers or Lightning."""


@contextmanager
def fitting_torchvision() -> Iterator[None]:
    """Raise ImportError with the remedy if an import fails because torchvision was built for another torch.

    Examples:
        >>> with fitting_torchvision():
        ...     raise RuntimeError("operator torchvision::nms does not exist")
        Traceback (most recent call last):
            ...
        ImportError: torchvision fits only the torch that it was built for: `pip install --force-reinstall torch ...
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:
        if MISMATCH not in "".join(traceback.format_exception(error)):
            raise
        raise ImportError(PAIR) from error
