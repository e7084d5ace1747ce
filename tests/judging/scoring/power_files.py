"""Power files as written by a power meter's script."""

import json
from pathlib import Path

START = 1_800_000_000_000.0


def write_power(path: Path, events: list[tuple[str, float, object]]) -> None:
    """A power file of (key, milliseconds, value)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        {"namespace": "", "time_ms": time, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": {}}
        for key, time, value in events
    )
    path.write_text("".join(f":::MLLOG {json.dumps(line)}\n" for line in lines))


def steady(watts: float, seconds: int, start: float = START) -> list[tuple[str, float, object]]:
    """A measurement of one reading a second."""
    readings = [("power_reading", start + 1000 * second, watts) for second in range(1, seconds + 1)]
    return [
        ("power_measurement_start", start, None),
        *readings,
        ("power_measurement_stop", start + seconds * 1000, None),
    ]
