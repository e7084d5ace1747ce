"""Config consistency: check that all ranks, started one by one on possibly different nodes, have the same settings."""

import json
from collections.abc import Mapping

from judging.ground.errors import UsageError
from timedrun.runner.distributed.process_group import ProcessGroup


class ConfigMismatch(UsageError):
    """Raised on all ranks if they disagree on their configuration."""


def require(ranks: ProcessGroup, given: Mapping[str, object], prevented: str = "the run was not started") -> None:
    """Raise ConfigMismatch unless all ranks have the same `given`; all ranks call this together.

    prevented: consequence for the message, which names each difference with the ranks that have each value.
    """
    # As text, which ranks with other versions of the code can compare too.
    shown = {name: json.dumps(value, sort_keys=True, default=str) for name, value in given.items()}
    all_ranks = ranks.all_gather(shown)
    if all(settings == all_ranks[0] for settings in all_ranks):
        return
    names = list(dict.fromkeys(name for settings in all_ranks for name in settings))
    lines = []
    for name in names:
        by_value: dict[str, list[int]] = {}
        for rank, settings in enumerate(all_ranks):
            by_value.setdefault(settings.get(name, "nothing"), []).append(rank)
        if len(by_value) > 1:
            values = ", ".join(f"{value} on {format_ranks(having)}" for value, having in by_value.items())
            lines.append(f"  - {name}: {values}")
    lines = [f"ranks disagree on their configuration; {prevented}:", *lines, "Start all ranks alike."]
    raise ConfigMismatch("\n".join(lines))


def format_ranks(ranks: list[int]) -> str:
    """Return [0, 1, 2, 5] as "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
