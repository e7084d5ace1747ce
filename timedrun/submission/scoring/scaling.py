"""The factor of scaling.json beside results, which a closed score is multiplied by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mlevents.event import is_number


class ScalingError(ValueError):
    """A scaling.json that says no factor."""


def scaling_factor(folder: Path) -> float | None:
    """The factor of scaling.json in `folder`; None where there is no such file.

    MLCommons' package checker writes it for closed results that converge faster than the reference
    (training_rules.adoc, "Reference Convergence Points").

    Raises:
        ScalingError: the file says none.
    """
    file = folder / "scaling.json"
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise ScalingError("its scaling.json cannot be read as JSON") from None
    factor = content.get("scaling_factor") if isinstance(content, Mapping) else None
    if not is_number(factor) or factor <= 0:
        raise ScalingError("its scaling.json holds no scaling_factor above 0")
    return float(factor)
