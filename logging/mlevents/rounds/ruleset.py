"""The shape of a round's rules: what a log of it must hold, as frozen data that the checks read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Occurrence = Literal["exactly one", "at least one"]
Direction = Literal[">=", "<="]
Unit = Literal["epoch", "samples"]


@dataclass(frozen=True, kw_only=True)
class RequiredKey:
    """A key a log must hold. With `alternative`, a log that holds that key instead is complete as well."""

    key: str
    occurrence: Occurrence = "exactly one"
    alternative: str | None = None
    metadata: tuple[str, ...] = ()  # names that each event's metadata must hold
    vocabulary: tuple[str, ...] | None = None  # the values allowed; None: any
    filled: bool = False  # an empty text is no value
    repeatable: bool = (
        True  # several with one value only warn (each rank may log it); False: a second one moves a clock
    )


@dataclass(frozen=True, kw_only=True)
class EvaluationInterval:
    """How much is trained between two evaluations, in the benchmark's unit: linear in the global batch."""

    constant: float
    per_batch: float = 0.0
    multiple: int = 1

    def at(self, global_batch_size: int) -> int:
        """The interval in epochs or samples: the linear function rounded down to a multiple of `multiple`."""
        return math.floor((self.constant + self.per_batch * global_batch_size) / self.multiple) * self.multiple


@dataclass(frozen=True, kw_only=True)
class BenchmarkRules:
    """What one benchmark asks in one round."""

    name: str
    dataset: str  # the name this project logs under the key "dataset" for the benchmark's own data
    metric: str
    target: float
    direction: Direction
    runs: int
    unit: Unit  # what metadata epoch_num counts
    evaluation_interval: EvaluationInterval | None  # binding in the closed division only; None: none is set
    dropped: int = 1  # runs left out at each end before the mean is taken
    open_keys: tuple[RequiredKey, ...] = ()
    closed_keys: tuple[RequiredKey, ...] = ()
    closed_optimizer_keys: Mapping[str, tuple[RequiredKey, ...]] | None = None  # by the value of opt_name

    def reached(self, quality: float, target: float | None = None) -> bool:
        """Whether `quality` reaches `target` (default: the benchmark's own). NaN reaches nothing."""
        wanted = self.target if target is None else target
        return quality >= wanted if self.direction == ">=" else quality <= wanted


@dataclass(frozen=True, kw_only=True)
class Repair:
    """How today's rule file of MLCommons' checker becomes the round's own: `text` in `file` is replaced by `by`."""

    file: str  # beside the checker's module: "training_2.1.0/closed_bert.yaml"
    text: str
    by: str


@dataclass(frozen=True, kw_only=True)
class UpstreamDefect:
    """A known error in a rule file of MLCommons' checker: it fails logs that the round's rules let pass."""

    rule: str  # short fixed id
    benchmark: str
    division: str
    meaning: str
    source: str
    repair: Repair


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """The rules of one round of MLPerf Training, as MLCommons' compliance checker of that number reads them."""

    name: str  # what MLCommons' tools call it: "2.0.0"
    round: str
    checker: str  # the version of mlperf-logging these data were compared with; "": MLCommons' tools do not know them
    status_words: tuple[str, ...]  # of the log's submission_status; (): the round does not ask for it
    system_status_words: tuple[str, ...] = ()  # of the system description's status; (): any
    init_minutes: Mapping[str, float]  # by division: the longest time from init_start to init_stop
    required: tuple[RequiredKey, ...]
    closed_required: tuple[RequiredKey, ...]
    benchmarks: Mapping[str, BenchmarkRules]
    defects: tuple[UpstreamDefect, ...] = ()
