"""Energy of runs, by the counters of GPUs and processors in their logs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mlevents.summary import RunSummary

KINDS: Final = {"gpu": "GPUs", "cpu": "processors"}
"""Measured parts."""


def shared_energy(runs: Sequence[RunSummary]) -> tuple[str, dict[Path, float]]:
    """Return what the energies that all runs have are of, GPUs, processors or both, and the joules of each by its path.
    "", or the reason if the logs give one, and {} if there is none."""
    kinds = [kind for kind in KINDS if runs and all(kind in run.joules for run in runs)]
    if not kinds:
        return next((run.unmeasured for run in runs if run.unmeasured), ""), {}
    joules = {run.path: sum(run.joules[kind] for kind in kinds) for run in runs}
    return " and ".join(KINDS[kind] for kind in kinds), joules


def energy_text(joules: float) -> str:
    """Return joules as text, larger ones in watt-hours or kilowatt-hours."""
    if joules >= 3.6e6:
        return f"{joules / 3.6e6:,.2f} kWh"
    return f"{joules / 3.6e3:.4g} Wh" if joules >= 1e4 else f"{joules:,.4g} J"
