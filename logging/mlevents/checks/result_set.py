"""Check a set of results: copies, repeated seeds, number of runs, runs of another configuration, convergence."""

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Final

from mlevents import keys
from mlevents.checks.convergence import check_convergence
from mlevents.checks.copies import copy_groups
from mlevents.event import Finding, Level, listed, short
from mlevents.rounds import Ruleset
from mlevents.rounds.own_rules import in_force, own_rules_of
from mlevents.run_status import failure
from mlevents.summary import SHARED, RunSummary

NAMED: Final = 12  # logs that a finding names


def check_set(
    summaries: Sequence[RunSummary], ruleset: str | Ruleset, described_division: str | None = None
) -> list[Finding]:
    """Return findings about `summaries` as one set of results. Raises ValueError for an unknown ruleset.
    `described_division`: of the system description, if the set is in a package."""
    rules = in_force(ruleset, own_rules_of(summaries))
    dropped = dropped_runs(summaries, rules)
    scored = [run for run in summaries if run not in dropped]
    groups = copy_groups(summaries)
    copies = [run for group, _, level in groups if level == "error" for run in group[1:]]
    originals = [run for run in summaries if run not in copies]  # a copy has the seed and the start of its original
    return [
        *_count(summaries, rules),
        *(
            _about(run, "warning", "run-dropped", f"{run.path.name} {why}; a score may drop it as the slowest run")
            for run, why in dropped.items()
        ),
        *(list(_mixed(scored)) or two_settings(scored)),
        *(_about(group[1], level, "copied-log", f"{_names(group)} {how}") for group, how, level in groups),
        *_seeds(originals),
        *_one_start(originals),
        *check_convergence(summaries, rules, described_division),
    ]


def dropped_runs(summaries: Sequence[RunSummary], rules: Ruleset) -> dict[RunSummary, str]:
    """Return the runs of a set that did not reach the target, with the reason, if a score may drop them.

    "A single non-converging run may be treated as the slowest run and dropped" (training_rules.adoc, "Benchmark
    Results"); more for benchmarks of which more runs are dropped. Empty for a demonstration or if too many failed."""
    benchmarks = in_force(rules, own_rules_of(summaries)).benchmarks
    benchmark = next(filter(None, (benchmarks.get(run.benchmark or "") for run in summaries)), None)
    if benchmark is None or any(run.is_demonstration for run in summaries):
        return {}
    logs = [run for run in summaries if run.events]  # a file that holds no log is no run
    failed = {run: why for run in logs if (why := failure(run, rules.name)) is not None}
    return failed if len(failed) <= benchmark.dropped < len(logs) / 2 else {}  # as many of the fastest are dropped


def _about(run: RunSummary, level: Level, rule: str, message: str) -> Finding:
    """Return a finding that names the log of `run`."""
    return Finding(level=level, rule=rule, message=message, path=str(run.path))


def _count(runs: Sequence[RunSummary], rules: Ruleset) -> Iterator[Finding]:
    benchmark = next(filter(None, (rules.benchmarks.get(run.benchmark or "") for run in runs)), None)
    if benchmark is None or len(runs) == benchmark.runs:
        return
    count = f"{len(runs)} result{'s' if len(runs) > 1 else ''} found"
    where = f" in {rules.round}" if rules.checker else ""
    message = f"{count}; {benchmark.name} requires exactly {benchmark.runs}{where}"
    if any(run.own_rules for run in runs):  # nobody else's rules: a comparison may have any number of runs
        yield Finding(level="warning", rule="run-count", message=message)
    elif not any(run.is_demonstration for run in runs):
        yield Finding(level="error", rule="run-count", message=message)
    elif len(runs) < benchmark.runs:
        yield Finding(level="warning", rule="run-count", message=f"{message} (demonstrations may have fewer)")


def _mixed(runs: Sequence[RunSummary]) -> Iterator[Finding]:
    said = [run for run in runs if run.events]  # a file without events is reported by its own check
    for position, key in enumerate(SHARED):
        values = (run.shared[position][1] for run in said)
        plain = (int(value) if isinstance(value, float) and value.is_integer() else value for value in values)
        groups = _grouped(said, [short(value, 200) for value in plain])
        if len(groups) > 1:
            parts = "; ".join(f"{value} in {_names(group)}" for value, group in groups.items())
            fewest = min(groups.values(), key=len)[0]
            yield _about(fewest, "error", "one-configuration", f"{key} differs within the set: {parts}")


def two_settings(runs: Sequence[RunSummary], dropped: Collection[RunSummary] = ()) -> Iterator[Finding]:
    """Yield a finding if batch size or hyper-parameters differ between the runs of a set. `dropped`: those of `runs`
    that a score may drop; the finding says which they are."""
    differing: list[str] = []
    others: dict[RunSummary, None] = {}
    settings = {run: {**run.hyperparameters, keys.GLOBAL_BATCH_SIZE: run.global_batch_size} for run in runs}
    for key in sorted(set[str]().union(*settings.values())):
        stating = [run for run in runs if isinstance(settings[run].get(key), int | float | str)]
        groups = _grouped(stating, [settings[run][key] for run in stating])
        if len(groups) > 1:
            (value, most), *rest = sorted(groups.items(), key=lambda item: -len(item[1]))
            parts = [f"{short(value)} in {len(most)} logs"]
            parts += [f"{short(value)} in {_names(some)}" for value, some in rest]
            differing.append(f"{key} is {', '.join(parts)}")
            others |= dict.fromkeys(run for _, some in rest for run in some)
    if differing:
        message = "; ".join(differing)
        if left_out := [run for run in others if run in dropped]:
            message += f". {_names(left_out)} did not reach the target and may be dropped from the score"
        yield _about(next(iter(others)), "warning", "two-settings", message)


def _seeds(runs: Sequence[RunSummary]) -> Iterator[Finding]:
    meaning = "runs of a set are repetitions with different seeds"
    seeded = [run for run in runs if run.seeds]
    for seed, group in _grouped(seeded, [run.seed for run in seeded]).items():
        if len(group) > 1:
            message = f"seed {short(seed)} is used by {_names(group)}; {meaning}"
            yield _about(group[1], "error", "repeated-seed", message)
    used = [(run, seed) for run in runs for seed in set(run.seeds)]
    for seed, group in _grouped([run for run, _ in used], [seed for _, seed in used]).items():
        if len(group) > 1 and len({run.seed for run in group}) == len(group):
            message = f"seed {short(seed)} is among the seeds of {_names(group)}; {meaning}"
            yield _about(group[1], "warning", "repeated-seed", message)


def _one_start(runs: Sequence[RunSummary]) -> Iterator[Finding]:
    """Yield an error for three or more runs that started in the same millisecond, which is no chance."""
    started = [run for run in runs if run.started_ms is not None]
    for start, group in _grouped(started, [run.started_ms for run in started]).items():
        if len(group) > 2:
            message = f"{_names(group)} have their run_start in one millisecond ({start:.0f}); runs of a set do not"
            yield _about(group[1], "error", "same-start", message)


def _grouped(runs: Sequence[RunSummary], values: Sequence[Hashable]) -> dict[Hashable, list[RunSummary]]:
    groups: dict[Hashable, list[RunSummary]] = {}
    for run, value in zip(runs, values, strict=True):
        groups.setdefault(value, []).append(run)
    return groups


def _names(runs: Sequence[RunSummary]) -> str:
    """Return file names if they are distinct, else whole paths; the first `NAMED` of many."""
    names = [run.path.name for run in runs]
    names = names if len(set(names)) == len(names) else [str(run.path) for run in runs]
    return listed(names, NAMED)
