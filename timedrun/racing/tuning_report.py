"""The report on a tuning: the chosen settings, as files that `race` takes, and the ratio against the minutes spent."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from judging.ground import ledger
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from mlevents.terminal_escape import printable
from timedrun.racing.race_file import Race, Tuned
from timedrun.racing.report import Packager, Report, Sets
from timedrun.racing.search import SEARCHED, Search

MARKS: Final = 8  # rows of the table of the ratio against the minutes spent
Files = Callable[[Path, dict[str, tuple[dict[str, float], Tuned]]], dict[str, str]]
"""Writes the settings chosen for each side, by its values and record, for a race; returns `race`'s words for each."""


class TuningReport(Report):
    """Results of a tuning. race.json gets them as `tuning`."""

    def __init__(self, race: Race, folder: Path, search: Search, write: Files) -> None:
        assert race.tuning
        self.race, self.folder, self.search, self.tuning, self._write = race, folder, search, race.tuning, write
        self.problems = list(race.report.get("problems", []))
        self.package_failed, self.checked, self.words = False, [], dict[str, str]()
        known = race.report.get("tuning", {}).get("sides", {})
        self.words |= {base: known[label]["file"] for base, label in self.tuning.labels.items() if label in known}

    def make(self, package: Packager, no_package: str, no_figure: str) -> None:
        """Write the chosen settings and race.json."""
        self.problems = []
        chosen = {base: best for base in self.tuning.bases if (best := self.search.best(base)) and best[1].reached}
        records = {base: (self.search.values(name), self.record(base, name)) for base, (name, _) in chosen.items()}
        self.words = self.guarded("settings not written", lambda: self._write(self.folder, records)) or {}
        sides = {
            self.tuning.labels[base]: {
                "folder": name,
                "settings": records[base][0],
                "seconds": outcome.seconds,
                "reached": outcome.reached,
                "runs": outcome.runs,
                "as_given_seconds": given.seconds if (given := self.search.outcome(f"{base}_0")).reached else None,
                "file": self.words.get(base),
                "record": asdict(records[base][1]),
            }
            for base, (name, outcome) in chosen.items()
        }
        self.race.report = {"tuning": {"sides": sides, "over_time": self.over_time()}, "notice": NOTICE}
        self.problems += [
            f"{label}: no run reached the target on {self.tuning.split or 'its data'}; give an easier --target, or more"
            " --minutes"
            for base, label in self.tuning.labels.items()
            if base not in chosen
        ]
        self.note("problems", self.problems)

    def record(self, base: str, name: str) -> Tuned:
        """Return the record of a side that becomes the setting `name`."""
        runs = self.search.runs(base)
        settings = self.search.settings(name, 0.0)
        entries = ledger.find(self.folder)
        return Tuned(
            minutes=round(self.search.spent(base) / 60, 2),
            trials=len(runs),
            settings=len({turn.side for turn in runs}),
            space={key: of.text for key, of in self.tuning.spaces[base].items()},
            split=self.tuning.split,
            target=settings["evaluation"]["target"] if "evaluation" in settings else settings["target"],
            seed=self.tuning.seed,
            ledger=ledger.parse(entries.read_bytes()).head if entries else "",
            of="",
        )

    @property
    def given_and_chosen(self) -> Sets:
        """The runs of each side as given, and of its chosen setting."""
        sets: Sets = {}
        for base, label in self.tuning.labels.items():
            names = {f"{base}_0": f"{label} as given", (self.search.best(base) or ("",))[0]: f"{label} tuned"}
            for name, words in names.items():
                sets |= {words: runs} if (runs := self.race.finished(self.folder, name)) else {}
        return sets

    def over_time(self) -> list[dict[str, Any]]:
        """Return the times of the settings that would have been chosen after as many minutes of each side."""
        points = []
        so_far = min(self.tuning.minutes, *(self.search.spent(base) / 60 for base in self.tuning.bases))
        for mark in range(1, MARKS + 1):
            minutes = so_far * mark / MARKS
            bests = {base: self.search.best(base, 60 * minutes) for base in self.tuning.bases}
            seconds = [best[1].seconds if best and best[1].reached else None for best in bests.values()]
            last = seconds[-1]
            ratios = [time / last if time and last else None for time in seconds[:-1]]
            points.append({"minutes": minutes, "seconds": seconds, "ratios": ratios})
        return points

    @property
    def answers(self) -> list[str]:
        """Sentences on the setting that was chosen for each side."""
        sentences = []
        for base, label in self.tuning.labels.items():
            best, given = self.search.best(base), self.search.outcome(f"{base}_0")
            if best and best[1].reached:
                values = ", ".join(f"{key} {value:g}" for key, value in self.search.values(best[0]).items())
                spent, runs = self.search.spent(base) / 60, len(self.search.runs(base))
                tuned = f"tuned {best[1].text} ({spent:.3g} min, {runs} runs)"
                sentences.append(printable(f"{label}: as given {given.text}; {tuned}: {values}"))
        return sentences

    def captioned(self) -> tuple[str, Table]:
        labels = list(self.tuning.labels.values())
        header = ["minutes each", *labels, *(f"ratio of {label}" for label in labels[:-1])]
        rows = [
            [
                f"{point['minutes']:.3g}",
                *("-" if time is None else f"{time:.3g} s" for time in point["seconds"]),
                *("-" if ratio is None else f"{ratio:.2f}x" for ratio in point["ratios"]),
            ]
            for point in self.over_time()
        ]
        data = self.tuning.split or "data that is not stated"
        caption = (
            f"Expected times to the target on {data} of the settings that would be chosen after so many minutes of each"
            f" side, misses included. Up to {SEARCHED * self.tuning.minutes:.3g} min they are the least of single runs,"
            " which flatters; then of repetitions with other seeds, at first of one each. No result: race the files."
        )
        return caption, Table(header, rows)

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    def details(self, shown: Path, *, verbose: bool = True) -> list[str]:
        lines = [NOTICE, *(f"problem     {printable(problem)}" for problem in self.problems)]
        lines += [printable(f"tuned       {words}") for words in dict.fromkeys(self.words.values())]
        return [*lines, f"logs        {self.folder}/<folder>/result_N.txt; all numbers are in race.json"]

    @property
    def next_words(self) -> tuple[str, ...]:
        """The words of the command that races the chosen settings."""
        return ("race", self.race.benchmark, *dict.fromkeys(self.words.values()))
