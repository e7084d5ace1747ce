"""Race of command lines, or of one command line at several commits or budgets: its plan, and the start of its runs."""

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from judging.ground import stdio
from judging.ground.errors import ExitCode, PreflightError, UsageError
from judging.ground.race_labels import letters
from mlevents import keys, record
from mlevents.terminal_escape import printable, shortened
from timedrun.racing.checkouts import Revision, checked_out, differences, hint, revisions
from timedrun.racing.command_run import OUTPUT, CommandRun
from timedrun.racing.command_side import CommandSide, side_in
from timedrun.racing.command_source import source_of
from timedrun.racing.command_tuning import first_trials
from timedrun.racing.plan import RacePlan, Rounds, Side
from timedrun.racing.race_file import (
    BUDGET,
    COMMANDS,
    Budget,
    Comparison,
    Race,
    Start,
    Tuned,
    Turn,
    paths_of,
    side_file,
)
from timedrun.runner.process.verdict import FINE, verdict_of
from timedrun.runner.storage.source_copies import digest

LAST_BYTES: Final = 4096  # of the output of a failed run, in which a missing file is named
LONGEST_LABEL: Final = 40
"""Characters of a command that is its own label; a longer one is labelled by its letter and the words of its own."""


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """Request for a race of commands, a run, a sweep or a tuning of them."""

    verb: str
    commands: Sequence[tuple[str, str, Tuned | None]]  # label, command line and record of the tuning of each side
    settings: Mapping[str, Any]  # of every side: fields of `CommandSide`
    rounds: Rounds
    results: str | None = None
    repo: str = "."
    at: Sequence[str] = ()  # commits; a side is the one command at each of them
    build: str = ""
    share: Sequence[str] = ()
    budgets: Sequence[str] = ()
    minutes: float = 0.0  # machine time of each side of a tuning
    split: str = ""


def new_race(request: CommandRequest) -> tuple[Path, Race]:
    """Plan a race of commands, find what can be found before it, and write its folder."""
    plan = plan_of(request)
    if len({turn.seed for turn in plan.race.turns}) > 1:
        sides = [(side.label, CommandSide(**side.settings)) for side in plan.sides]
        blind = [label for label, side in sides if not side.names_seed(source_of(side.command, Path.cwd()))]
        if blind:
            name, names = sides[0][1].seed_variable, ", ".join(blind)
            stdio.message(
                printable(f"{names}: neither the command nor its source names {name}, so that all runs may have one")
                + f" seed; write {{seed}} in the command, or read the variable {name}"
            )
    return plan.make_folder(request.results), plan.race


def plan_of(request: CommandRequest) -> RacePlan:
    """Return the plan of a race of commands; the last side meets each other one. Raises UsageError if it is no race."""
    verb, labelled, commits = request.verb, *labelled_commands(request)
    if not labelled:
        raise UsageError("give a command line, or several that race; one and --at twice races two commits.")
    sides = {letter: CommandSide(name=letter, command=command, **request.settings) for letter, (_, command) in
             labelled.items()}  # fmt: skip
    labels = {letter: label for letter, (label, _) in labelled.items()}
    budgets: dict[str, Budget] = {}
    *slower, last = sides
    repository, changed = Path(request.repo), list[str]()
    for side in slower if commits else ():
        changed += differences(repository, commits[side], commits[last])
    tuning, comparisons = None, list[Comparison]()
    no_package = "for a single command; give FOLDER/a to `timedrun package`" if len(sides) == 1 else ""
    if request.budgets or any(BUDGET in side.command for side in sides.values()):
        no_package = "for a sweep"
        sides, budgets = at_budgets(sides, labels, request.budgets)
        commits = {name: commits[letter] for name in sides if (letter := name.partition("_")[0]) in commits}
        labels = {name: budget.label for name, budget in budgets.items()}
    elif verb == "tune":
        no_package = "for a tuning"
        seed = request.rounds.first_seed
        tuning, sides, labels = first_trials(sides, labels, minutes=request.minutes, seed=seed, split=request.split)
    else:
        comparisons = [Comparison(row=labels[letter], slow=letter, fast=last) for letter in slower]
    records = dict(zip(letters(len(request.commands)), (record for _, _, record in request.commands), strict=True))
    options: dict[str, Any] = {}
    if commits:
        first = {"control": commits["a"]} if request.rounds.control else {}
        options = {"repo": request.repo, "build": request.build, "shared": list(request.share)}
        options["commits"] = {side: asdict(revision) for side, revision in (commits | first).items()}
    planned = [
        Side(name=name, label=labels[name], settings=asdict(side), tuned=records.get(name))
        for name, side in sides.items()
    ]
    return RacePlan.of(
        planned,
        request.rounds,
        benchmark=COMMANDS,
        options=options,
        commands={label: command for label, command in labelled.values() if label != command and not commits},
        comparisons=comparisons,
        budgets=budgets,
        tuning=tuning,
        differences=changed,
        no_package=no_package,
    )


def labelled_commands(request: CommandRequest) -> tuple[dict[str, tuple[str, str]], dict[str, Revision]]:
    """Return label and command of each side by its letter, and the commits of --at, if given, by letter, too. Raises
    UsageError without a command where there are commits."""
    given = [(label, command) for label, command, _ in request.commands]
    commits = revisions(Path(request.repo), request.at) if request.at else []
    if commits:
        if not given:
            raise UsageError("--at needs the command that is run at each commit; give it after --.")
        words = [command for _, command in given]  # one is a line of the shell, several are the words of one command
        command = shlex.join(words) if len(words) > 1 else words[0]
        given = [(revision.name, command) for revision in commits]
    labelled: dict[str, tuple[str, str]] = {}
    shared = set.intersection(*({*command.split()} for _, command in given)) if len(given) > 1 else set()
    for letter, (label, command) in zip(letters(len(given)), given, strict=True):
        if label != command:
            label = " ".join(label.splitlines())
        if label == command and (len(label) > LONGEST_LABEL or "\n" in label):
            own = " ".join(word for word in label.split() if word not in shared)
            label = shortened(f"{letter}: {own}", LONGEST_LABEL) if own else letter
        while label in [other for other, _ in labelled.values()]:
            label += " (again)"
        labelled[letter] = (label, command)
    return labelled, dict(zip(labelled, commits, strict=False))


def at_budgets(
    sides: Mapping[str, CommandSide], labels: Mapping[str, str], texts: Sequence[str]
) -> tuple[dict[str, CommandSide], dict[str, Budget]]:
    """Return each of the sides at each budget, by a folder of its own, and its place on its curve. Raises UsageError if
    there are no budgets, or a command does not get them."""
    if not texts or any(BUDGET not in side.command for side in sides.values()):
        raise UsageError(f"a sweep needs --budgets, such as 100,200,400, and the word {BUDGET} in each command.")
    swept: dict[str, CommandSide] = {}
    budgets: dict[str, Budget] = {}
    for (letter, side), text in product(sides.items(), texts):
        name, command = f"{letter}_{text}", side.command.replace(BUDGET, text)
        swept[name] = replace(side, name=name, command=command, to_end=not side.waits_for_stop)
        budgets[name] = Budget(curve=labels[letter], ratio=float(text), text=text)
    return swept, budgets


@contextmanager
def command_runs(folder: Path, race: Race, *, new: bool = False) -> Iterator[Start]:
    """Yield what runs a turn of a race of commands, each in the working directory or in that of its commit. A folder
    that is `new` is removed if a commit cannot be checked out. Raises UsageError if a side's source has changed."""
    commits = {side: Revision(**values) for side, values in race.options.get("commits", {}).items()}
    repository = Path(race.options.get("repo", "."))
    options = {name: race.options[name] for name in ("build", "shared") if name in race.options}
    with ExitStack() as stack:
        try:
            places = stack.enter_context(checked_out(repository, commits if race.left else {}, **options))
        except PreflightError:
            if new:
                shutil.rmtree(folder)
            raise
        if race.left and not new:
            require_same_source(folder, race, places)

        def start(turn: Turn, label: str) -> tuple[int, int]:
            side = replace(side_in(side_file(folder, turn.side)), seed=turn.seed)
            place, paths = places.get(turn.side, Path.cwd()), paths_of(folder, turn)
            code, interrupted = CommandRun(side, paths, runs=race.runs, label=label, directory=place).run()
            verdict = verdict_of(paths)
            stdio.message(printable(f"{label}: {verdict.words}"))
            if commits and verdict.code not in FINE:
                last = (paths.side / OUTPUT).read_bytes()[-LAST_BYTES:].decode(errors="replace")
                if missing := hint(repository, place, last.splitlines()):
                    stdio.message(printable(f"{label}: {missing}"))
            return (verdict.code if code in FINE else code), interrupted

        yield start


def require_same_source(folder: Path, race: Race, places: Mapping[str, Path]) -> None:
    """Raise UsageError if a side's command has another source here, or in its place, than its finished runs had."""
    for turn in race.turns:
        paths = paths_of(folder, turn)
        if turn.status != "finished" or not paths.log.is_file():
            continue
        source = source_of(side_in(side_file(folder, turn.side)).command, places.get(turn.side, Path.cwd()))
        if digest(source) != record.read(paths.log).value(keys.SOURCE_SHA256):
            raise UsageError(
                f"{race.sides[turn.side]}: its command has another source here than in its run {turn.number}, so the"
                " runs would not be of one program; nothing was run. Resume the race in the folder where it began, with"
                f" the source of which {paths.side} has copies, or make a new race."
            )


def run_code(race: Race, folder: Path, code: ExitCode) -> ExitCode:
    """Return the exit code of a race: of a single command that of its run, the worst one of several."""
    if not race.is_single_command or code not in (ExitCode.OK, ExitCode.ERROR):
        return code
    ends = {verdict_of(paths_of(folder, turn)).code for turn in race.turns}
    return ExitCode.TARGET_NOT_REACHED if ends <= {*FINE} and ExitCode.TARGET_NOT_REACHED in ends else code
