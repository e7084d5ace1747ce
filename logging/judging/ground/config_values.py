"""Settings of a dumped config, config.json of a run, by dotted name. Imports no torch."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any


def digest_of(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the settings without the seed and `keep_model`: equal for all runs of one set."""
    plain = {name: value for name, value in values.items() if name != "keep_model"} | {"seed": 0}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def flatten(values: object, prefix: str = "") -> dict[str, object]:
    """Return nested plain values as `{"optimizer.peak_lr": 2.048}`, a method's fields under its name."""
    if isinstance(values, dict):
        items = [(str(key), value) for key, value in values.items() if key != "method"]
        if "method" in values and not items:
            return {prefix: "on"}
    elif isinstance(values, list) and values and all(isinstance(v, dict) and "method" in v for v in values):
        items = [(str(value["method"]), value) for value in values]
    else:
        return {prefix: values}
    flat: dict[str, object] = {}
    for key, value in items:
        flat |= flatten(value, f"{prefix}.{key}" if prefix else key)
    return flat


def differing(
    a: Mapping[str, object], b: Mapping[str, object], leave_out: Collection[str] = ("name", "notes")
) -> list[tuple[str, object, object]]:
    """Return the settings in which two dumps differ as (name, value in a, value in b), "-" for a missing one."""
    left, right = flatten(a), flatten(b)
    names = [name for name in left | right if name not in leave_out]
    return [(k, left.get(k, "-"), right.get(k, "-")) for k in names if left.get(k, "-") != right.get(k, "-")]
