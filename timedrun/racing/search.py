"""The search of a tuning: which setting is tried next, and which one is chosen, by the logs of the runs so far."""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from judging.comparison.expected_time import Attempts
from judging.ground.errors import UsageError
from judging.ground.result_files import write_json
from mlevents.record import read
from mlevents.run_status import reached, target
from mlevents.summary import summarize
from timedrun.racing.race_file import Race, Range, Tuning, Turn, paths_of, side_file

FIRST_RUNS: Final = 8  # settings of a side that are drawn at random, before Optuna's sampler learns from them
SEARCHED: Final = 2 / 3
"""Share of a side's time that is spent on new settings; the rest is for repetitions of the best ones."""
ROUNDS: Final = 3  # rounds of repetitions, with other seeds, of equal time
REPEATED: Final = 8  # of so many settings one is repeated in the first round; of four that were, one is in the next
FEWEST: Final = 3  # settings that a round repeats at least
LONGEST: Final = 1 / 4  # share of a side's time that its first runs may take
SLOWER: Final = 3.0
"""A run that takes this many times the median of the side's runs that reached the target is stopped: half of them are
of better settings. Unlike the least time, which is luck, the median grows with the machine's load: noise is no miss."""
MOST_INVALID: Final = 50

Values = dict[str, float]
Trial = Callable[[dict[str, Any], Values, str, float], dict[str, Any]]
"""Returns the settings of a trial from those of its side as given, the values to try, its name and its longest time in
minutes. Raises UsageError for values that make no run."""


class Result(NamedTuple):
    """End of one run: whether and when it reached the target, or how near to the target its best quality came."""

    reached: bool
    seconds: float
    gap: float = 0.0


class Outcome(NamedTuple):
    """Outcome of the runs of a setting; the least is the best."""

    seconds: float  # expected time to a success, infinite without one
    gap: float  # mean of the runs' distances to the target, if none reached it
    reached: int
    runs: int

    @classmethod
    def of(cls, runs: Sequence[Result]) -> "Outcome":
        attempts = Attempts(*([run.seconds for run in runs if run.reached is reached] for reached in (True, False)))
        gap = 0.0 if attempts.reached or not runs else fmean(run.gap for run in runs)
        return cls(attempts.expected, gap, len(attempts.reached), len(runs))

    @property
    def text(self) -> str:
        """The expected time, and how many runs reached the target unless all did."""
        some = "" if self.reached == self.runs else f", {self.reached} of {self.runs} reached"
        return f"{self.seconds:.3g} s{some}" if self.reached else f"not reached by {self.runs}"


class Search:
    """Search of the tuning `race` in `folder`; without `trial`, it plans nothing. A function of the runs so far, so
    that an interrupted one goes on as if it had not been."""

    def __init__(self, race: Race, folder: Path, trial: Trial | None = None) -> None:
        if trial and find_spec("optuna") is None:
            raise UsageError("optuna, which proposes the settings, is not installed: pip install 'timedrun[tune]'.")
        assert race.tuning
        self.race, self.folder, self.tuning, self._trial = race, folder, race.tuning, trial
        self._results: dict[tuple[str, int], Result] = {}

    def plan_next(self) -> None:
        """Plan the next run, unless one is planned: of the side that was given the least time so far, which is due to
        what its runs took, until each side has its minutes."""
        for _ in range(MOST_INVALID):
            if any(turn.status in ("planned", "running", "interrupted") for turn in self.race.turns):
                return
            left = {base: spent for base in self.tuning.bases if (spent := self.spent(base)) < self._seconds}
            if not left:
                return
            base = min(left, key=lambda name: left[name])
            repeated = self._repeated(base, left[base])
            name = min(repeated, key=self._tries) if repeated else self._new(base)
            runs = [turn for turn in self.race.turns if turn.side == name]
            seed = self.tuning.seed + sum(base_of(turn.side) == base for turn in self.race.turns)
            turn = Turn(side=name, number=len(runs), seed=seed, session=self.race.session)
            self.race.turns.append(turn)
            if not runs:
                try:
                    write_json(side_file(self.folder, name), self.settings(name, self._longest(base)))
                except UsageError as error:
                    turn.status, turn.why = "failed", str(error)
        raise UsageError(f"{MOST_INVALID} settings in a row make no run; narrow the ranges. The last one: {turn.why}")

    def settings(self, name: str, minutes: float) -> dict[str, Any]:
        """Return the settings of the trial `name`, which is stopped after `minutes`."""
        assert self._trial
        return self._trial(self.tuning.bases[base_of(name)], self.values(name), name, minutes)

    def values(self, name: str) -> Values:
        """Return the values of the setting `name`, whole numbers as such."""
        space = self.tuning.spaces[base_of(name)]
        return {key: int(value) if space[key].whole else value for key, value in self.tuning.values[name].items()}

    @property
    def _seconds(self) -> float:
        return 60 * self.tuning.minutes

    def runs(self, base: str) -> list[Turn]:
        """Return the runs of a side that have ended, in order."""
        return [
            turn for turn in self.race.turns if base_of(turn.side) == base and turn.status in ("finished", "failed")
        ]

    def spent(self, base: str) -> float:
        """Return the machine time of a side so far, in seconds, starts of processes included."""
        return max(self._ends(base), default=0.0)

    def _ends(self, base: str) -> list[float]:
        """Return the machine time of a side at the end of each of its runs."""
        return list(accumulate(turn.seconds for turn in self.runs(base)))

    def result(self, turn: Turn) -> Result:
        """Return how a run ended; without a log its distance to the target is infinite."""
        key = (turn.side, turn.number)
        if key not in self._results:
            log = paths_of(self.folder, turn).log
            run = summarize(read(log)) if log.is_file() else None
            seconds = turn.seconds if run is None or run.minutes is None else 60 * run.minutes
            wanted = target(run) if run else None
            gaps = [abs(point.value - wanted) for point in run.quality] if run and wanted is not None else []
            near = min(filter(math.isfinite, gaps), default=math.inf)  # all are on one side of the target
            self._results[key] = Result(True, seconds) if run and reached(run) else Result(False, seconds, near)
        return self._results[key]

    def best(self, base: str, seconds: float = math.inf) -> tuple[str, Outcome] | None:
        """Return the setting that is chosen by the runs within the first `seconds` of a side, and what they show: its
        repetitions, of which the last round's did not choose it, or all runs while no repetition reached the target."""
        again = self._outcomes(base, seconds, repeated=True)
        again = {name: again[name] for name in self._repeated(base, seconds) if name in again}
        chosen = again if any(outcome.reached for outcome in again.values()) else self._outcomes(base, seconds)
        return min(chosen.items(), key=lambda item: item[1], default=None)

    def outcome(self, name: str) -> Outcome:
        """Return what all runs of a setting show."""
        return Outcome.of([self.result(turn) for turn in self.runs(base_of(name)) if turn.side == name])

    def _outcomes(self, base: str, seconds: float, *, repeated: bool | None = None) -> dict[str, Outcome]:
        """Return what the runs of each setting show that ended within the first `seconds` of a side: all, the first
        ones or the repetitions."""
        results: dict[str, list[Result]] = {}
        for turn, end in zip(self.runs(base), self._ends(base), strict=True):
            if end <= seconds and repeated in (None, bool(turn.number)):
                results.setdefault(turn.side, []).append(self.result(turn))
        return {name: Outcome.of(runs) for name, runs in results.items()}

    def _repeated(self, base: str, seconds: float) -> list[str]:
        """Return the settings that are repeated after `seconds` of a side, the best so far first: the least of many
        single runs are lucky, so many of them get a second one, and the best of those more (successive halving, Karnin
        et al. 2013). The side as given is among the first, unless it missed the target."""
        names: list[str] = []
        for number in range(ROUNDS):
            due = self._seconds * (SEARCHED + (1 - SEARCHED) * number / ROUNDS)
            begin = next((end for end in self._ends(base) if end >= due), math.inf)  # the run of that time has ended
            if seconds < begin:
                break
            first, again = (self._outcomes(base, begin, repeated=repeated) for repeated in (False, True))
            known = {name: again[name] for name in names if name in again} or first
            ranked = sorted(known, key=lambda name: known[name])
            most = max(FEWEST, len(first) // (REPEATED * 4**number))
            given = [name for name in ranked[most:] if not number and name == f"{base}_0" and known[name].reached]
            names = [*ranked[:most], *given]
        return names

    def _longest(self, base: str) -> float:
        """Return the minutes after which a run of a side is stopped."""
        times = [turn.seconds for turn in self.runs(base) if self.result(turn).reached]
        most = LONGEST * self.tuning.minutes
        return min(most, SLOWER * median(times) / 60) if times else most

    def _tries(self, name: str) -> int:
        return sum(turn.side == name for turn in self.race.turns)

    def _new(self, base: str) -> str:
        """Name a setting to try, the side as given first, and note its values."""
        tried = [name for name in self.race.sides if base_of(name) == base]
        name, space = f"{base}_{len(tried)}", self.tuning.spaces[base]
        first = self._outcomes(base, math.inf, repeated=False)
        ranks = {outcome: place for place, outcome in enumerate(sorted({*first.values()}))}
        runs = [(self.values(side), float(ranks[outcome])) for side, outcome in first.items()]
        asked = proposed(space, runs, self.tuning.seed + len(tried))
        self.race.sides[name] = add(
            self.tuning, base, name, {key: space[key].at(value) for key, value in asked.items()}
        )
        return name


def add(tuning: Tuning, base: str, name: str, values: Values) -> str:
    """Note a setting to try, whose runs are in the folder `name`, and return its label."""
    tuning.values[name] = values
    shown = ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in values.items())
    return f"{tuning.labels[base]}: {shown}"


def base_of(name: str) -> str:
    """Return the side that a setting is of."""
    return name.rpartition("_")[0]


def proposed(space: dict[str, Range], runs: list[tuple[Values, float]], seed: int) -> Values:
    """Return values that Optuna's sampler TPE proposes after `runs`, values with their ranks, of which only the order
    counts (Bergstra et al. 2011; its multivariate form, Falkner et al. 2018)."""
    import optuna  # half a second that no other verb waits for
    from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # "multivariate" is called experimental at every study
    kinds: dict[str, BaseDistribution] = {
        key: (IntDistribution(int(of.low), int(of.high), log=True))
        if of.whole
        else FloatDistribution(of.low, of.high, log=True)
        for key, of in space.items()
    }
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST_RUNS, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    for values, rank in runs:
        study.add_trial(optuna.trial.create_trial(params=values, distributions=kinds, value=rank))
    return dict(study.ask(kinds).params)
