"""Speed-up of one set of runs over another; refuses to compare different work."""

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from judging.comparison.expected_time import Attempts, expected_time, ratio_of_expected
from judging.comparison.speedup_ratio import Difference, NotComparable, Ratio, compare, decompose
from judging.ground.config_values import differing
from judging.ground.errors import TimedrunError
from judging.ground.race_labels import label_of
from judging.ground.result_files import read_json
from judging.scoring.decomposition import Decomposition, RunParts, decomposition, run_parts, training_caveats
from judging.scoring.recorded_run import RecordedRun, differences, recorded_run_of
from judging.scoring.run_set import UNKNOWN, copied
from judging.scoring.score import Score, score_set, scored_ruleset
from mlevents import keys
from mlevents.rounds import BENCHMARK_DATASET
from mlevents.rounds.own_rules import as_recorded
from mlevents.run_status import failure, reached, rules_of, target
from mlevents.summary import RunSummary

ALLOWABLE: Final = ("hardware", "data", "target")
"""Kinds of differences that `--allow` accepts. Different benchmarks are never compared."""

MAX_SHOWN: Final = 8  # settings of configs named in a note
MOST_NAMED: Final = 4  # runs named that were disturbed, and those that missed their target
ONE_BUDGET: Final = "with one training budget; a schedule of another length may reach the target sooner"


def compare_sets(
    slow: Sequence[RunSummary],
    fast: Sequence[RunSummary],
    *,
    paired: bool,
    allow: Collection[str] = (),
    confidence: float = 0.95,
    attempts: Sequence[Attempts] = (),
) -> Ratio:
    """Compare the times to train of two sets of logs.

    Benchmark, dataset and target must be equal, and so must the hardware and the digest of the data if both sets
    recorded them. The ratio is of the runs, or the pairs, that reach the target; the verdict takes the others into
    account, by the expected times to a success. `allow`: kinds of `ALLOWABLE` that may differ; the result lists the
    differences. `attempts`: of each set, runs included that have no log or no partner; default: those of the runs.
    Raises NotComparable if the sets differ, a set holds copies of one log or no run that reached the target, or paired
    runs were not interleaved. The message names every difference with its files."""
    differences = _allowed_differences(slow, fast, allow)
    sets, notes = (slow, fast), list[str]()
    failed = [_failures(name, runs, notes) for name, runs in zip(("first", "second"), sets, strict=True)]
    names = _set_names(slow[0].path, fast[0].path)
    attempts = attempts or [attempts_of(runs) for runs in sets]
    for name, of, out in zip(names, attempts, failed, strict=True):
        if not of.reached:
            why = next(iter(out.values()), "has no partner")
            raise NotComparable(
                f"{name}: none of its {len(of.missed)} runs reached the target (the first {why}), so its expected time"
                " to a success is unbounded; there is no time to compare."
            )
    disturbed = [{i for i, run in enumerate(runs) if run.disturbances} for runs in sets]
    disturbances = [f"{_name(run.path)}: {'; '.join(run.disturbances)}" for run in (*slow, *fast) if run.disturbances]
    if paired:
        _refuse_unless_interleaved(slow, fast)
        failed, disturbed = [failed[0] | failed[1]] * 2, [disturbed[0] | disturbed[1]] * 2  # pairs are left out whole
    left_out = failed, [{*out} | loud for out, loud in zip(failed, disturbed, strict=True)]
    times, quiet = ([_times(runs, out) for runs, out in zip(sets, outs, strict=True)] for outs in left_out)
    if not times[0]:
        raise NotComparable(
            f"{names[0]} and {names[1]} reach the target in no pair both, but in {len(attempts[0].reached)} and"
            f" {len(attempts[1].reached)} runs apart; compare them with --no-paired."
        )
    scores = [_score(runs) for runs in sets]
    minutes = [score.score_minutes for score in scores]
    parts = [_parts(runs, left_out) for runs, left_out in zip(sets, failed, strict=True)]
    notes += [*_caveats(slow[0], fast[0]), *training_caveats(parts, [score.first_epoch_share for score in scores])]
    if {run.sha256 for run in slow} & {run.sha256 for run in fast}:
        notes.append("both sets contain the same log")
    divisions = (scores[0].division, scores[1].division) if UNKNOWN not in {s.division for s in scores} else None
    if divisions and divisions[0] == divisions[1]:
        notes.append(f"both sets are of the {divisions[0]} division")
    ratio = partial(compare, paired=paired, confidence=confidence)
    one_config = slow[0].config_digest is not None and slow[0].config_digest == fast[0].config_digest
    ends = (expected_time(attempts[0], confidence), expected_time(attempts[1], confidence))
    return replace(
        ratio(*times),
        slow=names[0],
        fast=names[1],
        attempts=ends,
        expected=ratio_of_expected(attempts[0], attempts[1], confidence),
        ratio_of_scores=minutes[0] / minutes[1] if minutes[0] and minutes[1] else None,
        quality_slow=scores[0].quality,
        quality_fast=scores[1].quality,
        target=scores[0].target if scores[0].target == scores[1].target else None,
        differences=differences,
        disturbances=tuple(disturbances),
        undisturbed=replace(ratio(*quiet), attempts=ends) if disturbances and all(quiet) else None,
        decomposition=decompose(*parts, paired=paired, confidence=confidence) if all(parts) else None,
        decomposition_of_scores=_decomposed_scores(*scores),
        minutes_slow=geometric_mean(times[0]),
        minutes_fast=geometric_mean(times[1]),
        slow_digest=slow[0].config_digest,
        divisions=divisions,
        budget_caveat=None if one_config else f"{names[0]} was measured {ONE_BUDGET}",
        notes=tuple(notes),
    )


def _allowed_differences(
    slow: Sequence[RunSummary], fast: Sequence[RunSummary], allow: Collection[str]
) -> tuple[Difference, ...]:
    """Return the differences of two sets; raise NotComparable for one that is not allowed, or copies of a log."""
    for runs in (slow, fast):
        if not runs:
            raise NotComparable("a set has no run with a partner of the same number; compare them with --no-paired.")
        _, name = rules_of(_benchmark(runs), None, runs)
        if name and (message := copied(runs, name, [])):
            raise NotComparable(f"a set contains copies of a run: {message}.")
    differences = (*_logged_differences(slow, fast), *_recorded_differences(slow, fast))
    if refused := [d for d in differences if d.kind not in allow or d.kind not in ALLOWABLE]:
        kinds = list(dict.fromkeys(difference.kind for difference in refused))
        advice = "Times of different benchmarks are never compared."
        if set(kinds) <= set(ALLOWABLE):
            advice = f"If that is intended, use --allow {' '.join(kinds)}."
        raise NotComparable(f"not compared: the sets differ ({'; '.join(map(str, refused))}). {advice}", refused)
    return differences


def attempts_of(runs: Sequence[RunSummary]) -> Attempts:
    """Return the seconds of the runs that reached the target, and of those that did not."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for run in runs:
        seconds[not reached(run)].append(math.nan if run.minutes is None else 60 * run.minutes)
    return Attempts(*seconds)


def why_missed(run: RunSummary) -> str | None:
    """Return why a run did not reach its target, by its quality where that says it; None if it did."""
    why = failure(run)
    return why and (failure(replace(run, status=keys.SUCCESS)) or why)


def pairs_of(slow: Sequence[RunSummary], fast: Sequence[RunSummary]) -> tuple[list[RunSummary], list[RunSummary]]:
    """Return the runs of interleaved sets whose number both sets have, in the order of their numbers."""
    first, second = ({number_of(run.path): run for run in runs} for runs in (slow, fast))
    both = sorted(first.keys() & second.keys())
    return [first[number] for number in both], [second[number] for number in both]


def number_of(path: Path) -> int:
    """Return the number of a run by the name of its log, -1 without one."""
    return int("".join(re.findall(r"[0-9]+", path.stem)[-1:]) or -1)


def _set_names(slow: Path, fast: Path) -> tuple[str, str]:
    """Return the labels of sides of a race, else the lowest folders in which two paths differ, or "the first set" and
    "the second set"."""
    if slow.parent != fast.parent and (first := label_of(slow.parent)) and (second := label_of(fast.parent)):
        return first, second
    parts = zip(reversed(slow.absolute().parts[:-1]), reversed(fast.absolute().parts[:-1]), strict=False)
    return next(((a, b) for a, b in parts if a != b), ("the first set", "the second set"))


def _logged_differences(slow: Sequence[RunSummary], fast: Sequence[RunSummary]) -> Iterator[Difference]:
    """Yield the differences between the logs in benchmark, dataset and target, each run compared with the first. A run
    that failed early may lack them."""
    for kind, logged, of in (
        ("benchmark", "benchmark", lambda run: run.benchmark),
        ("benchmark", "own_rules", lambda run: run.own_rules and {**as_recorded(run.own_rules), "runs": "any"}),
        ("data", "dataset", lambda run: run.dataset or BENCHMARK_DATASET.get(run.benchmark or "")),
        ("target", "quality_target", target),
    ):
        known = [run for run in (*slow, *fast) if getattr(run, logged) is not None or reached(run)]
        for other in known[1:]:
            if of(other) != of(known[0]):
                first, second = (f"{of(run)} in {_name(run.path)}" for run in (known[0], other))
                yield Difference(kind=kind, what=logged.replace("_", " "), first=first, second=second)
                break


def _recorded_differences(slow: Sequence[RunSummary], fast: Sequence[RunSummary]) -> Iterator[Difference]:
    """Yield the differences in machine, number of ranks or data by the files next to the logs, if both sides have
    them."""
    first = recorded_run_of(slow[0].path)
    seen = set()
    for other in (*slow, *fast):
        groups = differences(first, recorded_run_of(other.path))
        of_kind = {
            "hardware": groups["hardware"] | {k: v for k, v in groups["origin"].items() if k == "ranks"},
            "data": {f"digest of the {k}": v for k, v in groups["origin"].items() if k == "data"},
        }
        for kind, values in of_kind.items():
            for what, (own, another) in values.items():
                if own is not None and another is not None and what not in seen:
                    seen.add(what)
                    yield Difference(kind=kind, what=what, first=_text(own), second=_text(another))


def _caveats(slow: RunSummary, fast: RunSummary) -> list[str]:
    """Return the differences between the sets' first runs that may affect speed but do not forbid a comparison."""
    sides = [recorded_run_of(run.path) for run in (slow, fast)]
    undescribed = [name for name, side in zip(("first", "second"), sides, strict=True) if not side.system.is_file()]
    notes = [f"the {name} set has no description of its hardware, which may differ" for name in undescribed]
    groups = differences(*sides)
    for text, values in (
        ("the software differs", groups["versions"]),
        ("the source differs", {k: v for k, v in groups["origin"].items() if k not in ("ranks", "data")}),
        ("the configs differ", _config_differences(*sides)),
    ):
        known = [f"{what} ({_text(own)} and {_text(other)})" for what, (own, other) in values.items()]
        if known:
            rest = f"; and {len(known) - MAX_SHOWN} more" if len(known) > MAX_SHOWN else ""
            notes.append(f"{text}: {'; '.join(known[:MAX_SHOWN])}{rest}")
    if slow.global_batch_size != fast.global_batch_size:
        notes.append(f"the global batch size differs: {slow.global_batch_size} and {fast.global_batch_size}")
    return notes


def _times(runs: Sequence[RunSummary], left_out: Collection[int]) -> list[float]:
    return [run.minutes or math.nan for i, run in enumerate(runs) if i not in left_out]


def _parts(runs: Sequence[RunSummary], left_out: Collection[int]) -> list[RunParts]:
    """Return the parts of the times of the runs that are not left out; [] if a log lacks its progress."""
    benchmark = _benchmark(runs)
    rules, _ = rules_of(benchmark, scored_ruleset(benchmark, runs[0]), runs)
    parts = [run_parts(run, rules) for i, run in enumerate(runs) if i not in left_out]
    return [] if None in parts else [part for part in parts if part is not None]


def _decomposed_scores(slow: Score, fast: Score) -> Decomposition | None:
    scores = all(score.score_minutes is not None and not score.scaling_factor for score in (slow, fast))
    if slow.parts is None or fast.parts is None or slow.parts.unit != fast.parts.unit or not scores:
        return None
    return decomposition(slow.parts, fast.parts)


def _config_differences(slow: RecordedRun, fast: RecordedRun) -> dict[str, list[Any]]:
    if not (slow.config.is_file() and fast.config.is_file()):
        return {}
    configs = [read_json(run.config) for run in (slow, fast)]
    for run, values in zip((slow, fast), configs, strict=True):
        if not isinstance(values, dict):
            raise TimedrunError(f"{run.config}: not a JSON object of settings; nothing was compared.")
    return {name: list(pair) for name, *pair in differing(*configs) if name != "seed"}


def _failures(name: str, runs: Sequence[RunSummary], notes: list[str]) -> dict[int, str]:
    """Return the runs of a set that did not reach their target, with the reasons, and note them."""
    failed = {i: why for i, run in enumerate(runs) if (why := why_missed(run))}
    for i, why in list(failed.items())[:MOST_NAMED]:
        notes.append(
            f"{_name(runs[i].path)} {why}; it is left out of the {name} set's geometric mean and median, and counts in "
            "the expected time to a success"
        )
    if len(failed) > MOST_NAMED:
        notes.append(f"{len(failed) - MOST_NAMED} more runs of the {name} set missed the target")
    return failed


def _refuse_unless_interleaved(slow: Sequence[RunSummary], fast: Sequence[RunSummary]) -> None:
    """Raise NotComparable unless pairs have equal numbers and every pair started before the next one."""
    if len(slow) != len(fast):
        raise NotComparable(f"{len(slow)} and {len(fast)} runs cannot be paired; compare them with --no-paired.")
    before = -math.inf
    for a, b in zip(slow, fast, strict=True):
        if number_of(a.path) != number_of(b.path):
            raise NotComparable(
                f"{_name(a.path)} and {_name(b.path)} are not a pair: their numbers differ; leave out runs without a "
                "partner, or use --no-paired."
            )
        starts = [run.started_ms for run in (a, b) if run.started_ms is not None]
        if starts and min(starts) < before:
            raise NotComparable(
                f"{_name(a.path)} and {_name(b.path)} started before the preceding pair: these runs were not "
                "interleaved; use --no-paired."
            )
        before = max([before, *starts])


def _score(runs: Sequence[RunSummary]) -> Score:
    name = (runs[0].organization or UNKNOWN, runs[0].platform or UNKNOWN, _benchmark(runs) or UNKNOWN)
    return score_set(runs, name)


def _benchmark(runs: Sequence[RunSummary]) -> str:
    return next((run.benchmark for run in runs if run.benchmark), "")


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _name(path: Path) -> str:
    return "/".join(path.parts[-2:])
