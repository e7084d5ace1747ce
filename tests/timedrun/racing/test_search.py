"""The search of a tuning, with planted times and a fake clock: what is found, what each side is given, what goes on."""

import math
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import UsageError
from judging.ground.result_files import read_json, write_json
from tests.timedrun.racing.conftest import run_turns
from timedrun.racing import race_file
from timedrun.racing.race_file import Race, Range, Tuning, Turn, paths_of, side_file
from timedrun.racing.search import MOST_INVALID, Outcome, Search, Values, add
from timedrun.racing.turns import plan_again, settle

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'timedrun[tune]'")
BEST = 0.3
"""Planted: the rate of the least time."""
LEAST = 20.0
"""Planted: seconds of a run at that rate."""
Planted = Callable[..., "Trials"]


class Trials:
    """A tuning of the sides a and b, whose runs take a planted time on a fake clock; b's take twice as long."""

    def __init__(self, folder: Path, write_run: Callable[..., Path], minutes: float) -> None:
        space = {"lr": Range(0.01, 1.0), "batch": Range(16, 64, whole=True)}
        tuning = Tuning(
            minutes=minutes, seed=5, split="toy", spaces={"a": space, "b": space},
            bases={"a": {}, "b": {}}, labels={"a": "first", "b": "second"},
        )  # fmt: skip
        self.race = Race(benchmark="toy", runs=1, sides={}, turns=[], tuning=tuning)
        self.folder, self.write_run, self.now = folder, write_run, 0.0
        (folder / "sides").mkdir(parents=True)
        self.most, self.noise = math.inf, 0.0

    @property
    def search(self) -> Search:
        return Search(self.race, self.folder, self.trial)

    def trial(self, base: dict[str, Any], values: Values, name: str, minutes: float) -> dict[str, Any]:
        if values["lr"] > self.most:
            raise UsageError("no such rate")
        return {**values, "minutes": minutes}

    @staticmethod
    def seconds(values: Values) -> float:
        """Return the planted seconds of a run of the side a without luck."""
        return LEAST + 10 * (abs(math.log(values["lr"] / BEST)) + abs(math.log(values["batch"] / 32)) / 4)

    def run(self, runs: int = 1000) -> int:
        """Run all but the runs from number `runs` on, at which a signal comes."""
        search, left = self.search, [runs]

        def start(turn: Turn, label: str) -> tuple[int, int]:
            settings, left[0] = read_json(side_file(self.folder, turn.side)), left[0] - 1
            luck = math.exp(self.noise * random.Random(turn.seed).gauss())
            seconds = self.seconds(settings) * luck * (2 if turn.side.startswith("b") else 1)
            stopped = min(seconds, 60 * settings["minutes"])
            self.now += 1.0 + stopped
            if left[0] < 0:
                return 1, signal.SIGTERM
            quality = 0.6 if stopped == seconds else 0.4
            self.write_run(paths_of(self.folder, turn).folder, turn.number, stopped, quality=quality)
            return 0, 0

        search.plan_next()
        signalled = run_turns(self.race, self.folder, start, lambda _: search.plan_next(), clock=lambda: self.now)
        self.race.save(self.folder)
        return signalled


@pytest.fixture
def planted(tmp_path: Path, write_run: Callable[..., Path]) -> Planted:
    return lambda name="tuning", minutes=30.0: Trials(tmp_path / name, write_run, minutes)


def test_a_planted_best_is_found_within_equal_time_of_each_side(planted):
    trials = planted()
    assert trials.run() == 0
    search, tuning = trials.search, trials.race.tuning
    assert tuning is not None
    for side, least in (("a", LEAST), ("b", 2 * LEAST)):
        name, found = search.best(side) or ("", Outcome(0.0, 0.0, 0, 0))
        assert BEST / 1.4 < tuning.values[name]["lr"] < BEST * 1.4 and least <= found.seconds < 1.25 * least
        assert tuning.values[f"{side}_0"]["lr"] != tuning.values[f"{side}_1"]["lr"]
        longest = max(turn.seconds for turn in search.runs(side))
        assert 60 * tuning.minutes <= search.spent(side) <= 60 * tuning.minutes + longest
    turns = trials.race.turns
    assert len(search.runs("a")) > 1.5 * len(search.runs("b"))  # of shorter runs there are more
    for turn in range(2, len(turns)):  # at no time was one side ahead by more than a run
        spent = [sum(t.seconds for t in turns[:turn] if t.side.startswith(side)) for side in "ab"]
        assert abs(spent[0] - spent[1]) <= max(t.seconds for t in turns[:turn])
    assert {turn.seed for turn in turns if turn.side.startswith("a")} == {*range(5, 5 + len(search.runs("a")))}


def test_an_interrupted_tuning_goes_on_with_the_trials_that_it_would_have_made(planted):
    whole, stopped = planted("whole", 8.0), planted("stopped", 8.0)
    whole.run()
    assert stopped.run(runs=5) == signal.SIGTERM
    interrupted = stopped.race.turns[-1]
    assert interrupted.status == "interrupted" and len(stopped.race.turns) == 6
    stopped.race = race_file.load(stopped.folder)
    stopped.race.turns[-1].status = "running"  # as a kill leaves it
    settle(stopped.race, stopped.folder)
    plan_again(stopped.race, stopped.folder)
    stopped.run()
    made = [[(turn.side, turn.number, turn.seed) for turn in trials.race.turns] for trials in (whole, stopped)]
    assert made[0] == made[1] and len(made[0]) > 15
    assert whole.race.tuning and stopped.race.tuning and whole.race.tuning.values == stopped.race.tuning.values


def test_a_run_without_the_target_is_ranked_by_its_quality_behind_all_others_and_stopped_early(planted, write_run):
    trials = planted(minutes=40.0)
    turns = [Turn(side=f"a_{place}", number=0, seed=1, status="finished", seconds=60.0) for place in range(4)]
    for turn, quality in zip(turns, (0.6, 0.3, 0.4, None), strict=True):
        if quality is not None:
            write_run(trials.folder / turn.side, 0, 50.0, quality=quality)
    search = trials.search
    assert search._longest("a") == 10.0  # a quarter of the time, while nothing is known
    trials.race.turns += turns
    outcomes = [search.outcome(turn.side) for turn in turns]
    assert [outcome.seconds for outcome in outcomes] == [50.0, *[math.inf] * 3]
    assert [outcome.gap for outcome in outcomes] == pytest.approx([0, 0.2, 0.1, math.inf])
    assert sorted(outcomes) == [outcomes[place] for place in (0, 2, 1, 3)]
    for seconds in (80.0, 4000.0):
        write_run(trials.folder / "a_4", number := len(trials.race.turns), seconds)
        trials.race.turns.append(Turn(side="a_4", number=number, seed=1, status="finished", seconds=seconds))
    assert search._longest("a") == 3 * 80 / 60  # three times the median of 60, 80 and 4000


def test_a_setting_is_ranked_by_its_expected_time_to_a_success_and_no_miss_is_averaged_as_a_time(planted, write_run):
    trials = planted(minutes=4.0)
    often, rarely = [(10.0, 0.6), *[(12.0, 0.6), (16.0, 0.4)] * 3], [(9.0, 0.6), *[(9.0, 0.4)] * 5, (9.0, 0.6)]
    for number, both in enumerate(zip(often, rarely, strict=True)):
        for side, (seconds, quality) in zip(("a_0", "a_1"), both, strict=True):
            write_run(trials.folder / side, number, seconds, quality=quality)
            taken = 90.0 if number == 0 else seconds
            trials.race.turns.append(Turn(side=side, number=number, seed=1, status="finished", seconds=taken))
    search = trials.search
    name, found = search.best("a") or ("", Outcome(0.0, 0.0, 0, 0))
    assert (name, found.reached, found.runs) == ("a_0", 3, 6) and found.seconds == pytest.approx(28.0)  # (36 + 48) / 3
    assert found.text == "28 s, 3 of 6 reached" and search.outcome("a_1").text == "31.5 s, 2 of 7 reached"


def test_the_setting_whose_repetitions_are_best_is_chosen_and_not_the_luckiest_run(planted, write_run):
    trials = planted(minutes=6.0)
    for side, seconds in (("a_0", 30), ("a_1", 10), ("a_2", 31), ("a_3", 99)):
        write_run(trials.folder / side, 0, seconds)
        trials.race.turns.append(Turn(side=side, number=0, seed=1, status="finished", seconds=60.0))
    search = trials.search
    assert search.best("a") == ("a_1", Outcome(10.0, 0.0, 1, 1)) and search.best("a", seconds=30) is None
    repeated = []
    for seconds in (80, 35, 20, 90, 33):
        names = search._repeated("a", search.spent("a"))
        repeated.append(name := min(names, key=search._tries))
        write_run(trials.folder / name, search._tries(name), seconds)
        trials.race.turns.append(Turn(side=name, number=search._tries(name), seed=2, status="finished", seconds=15.0))
    assert repeated == ["a_1", "a_0", "a_2", "a_2", "a_0"]  # in the second round the best of the first one is first
    assert search.best("a") == ("a_0", Outcome(34.0, 0.0, 2, 2))
    assert search.best("a", seconds=230) == ("a_1", Outcome(10.0, 0.0, 1, 1))


def test_of_many_settings_that_are_a_matter_of_luck_the_one_as_given_stays_unless_another_is_better(planted):
    """Single runs differ by a factor of 1.5 by their seed, the settings by less: three luckiest would be chosen at
    random. The side as given is the best there is."""
    trials = planted(minutes=60.0)
    trials.noise, tuning = 0.4, trials.race.tuning
    assert tuning is not None
    for name in ("a_0", "b_0"):
        trials.race.sides[name] = add(tuning, name[0], name, {"lr": BEST, "batch": 32})
        trials.race.turns.append(Turn(side=name, number=0, seed=1))
        write_json(side_file(trials.folder, name), trials.search.settings(name, 15.0))
    trials.run()
    search = trials.search
    for side in "ab":
        name, _ = search.best(side) or ("", None)
        assert trials.seconds(tuning.values[name]) < 1.2 * LEAST
        repeated = {turn.side for turn in search.runs(side) if turn.number}
        assert f"{side}_0" in repeated and len(repeated) > 5
        assert search._tries(name) > 3


def test_values_that_make_no_run_cost_no_time_and_a_space_of_them_is_refused(planted):
    trials = planted(minutes=3.0)
    trials.most = 0.4
    trials.run()
    runs = trials.search.runs("a")
    assert {turn.seconds > 0 for turn in runs if turn.why == "no such rate"} == {False}
    assert sum(turn.seconds for turn in runs) >= 180 and runs[-1].status == "finished"
    other = planted("other", 3.0)
    other.most = 0.0
    with pytest.raises(UsageError, match=rf"{MOST_INVALID} settings in a row make no run.*no such rate"):
        other.search.plan_next()
    assert {turn.status for turn in other.race.turns} == {"failed"}


@pytest.mark.parametrize("text", ["2..1", "0..1", "a..b"])
def test_a_range_is_of_a_logarithmic_scale(text):
    if text == "a..b":
        assert Range.parsed(text) is None
    else:
        with pytest.raises(UsageError, match="no range of a logarithmic scale"):
            Range.parsed(text)
    parsed = Range.parsed("16..64")
    assert parsed == Range(16, 64, whole=True) and parsed.at(31.6) == 32 and parsed.at(100) == 64
    assert Range(0.5, 8, whole=True) == Range(1, 8, whole=True)
    assert Range.parsed("1e-3..0.1") == Range(0.001, 0.1) and Range(0.01, 1).at(0.123456) == 0.123
