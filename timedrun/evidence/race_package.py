"""Package of a race whose runs have all finished."""

from pathlib import Path
from typing import Any

from judging.checking.check_report import CheckResult, summary_lines
from judging.ground.result_files import read_object
from judging.scoring.recorded_run import recorded_run_of
from mlevents.record import read
from mlevents.rounds.own_rules import BEYOND_MLPERF, NOT_APPLICABLE
from mlevents.summary import summarize
from mlevents.terminal_escape import printable
from timedrun.evidence.submission.packaging import package
from timedrun.racing.race_file import Race, paths_of
from timedrun.runner.provenance.system_answers import read_answers
from timedrun.runner.storage.benchmark_folders import ROOT


def package_race(race: Race, folder: Path) -> tuple[str, bool, dict[str, Any]]:
    """Package the sides of the race in `folder`. Return the lines to print, True if a check of the package failed, and
    its verdicts for race.json."""
    first = next(turn for turn in race.turns if turn.side in race.racing)
    answers = race.options.get("answers")
    system = recorded_run_of(paths_of(folder, first).log).system
    if not answers and system.is_file() and not read_object(system).get("host_processors_per_node"):
        what = "the number of this machine's processors is not known; give host_processors_per_node in --answers"
        return f"skipped: {what}", False, {}
    made = package.package(
        [folder / side for side in race.racing],
        folder / "package",
        submitter=summarize(read(paths_of(folder, first).log)).organization or "",
        source=ROOT,
        answers=read_answers(Path(answers)) if answers else None,
    )
    own = made.ruleset == BEYOND_MLPERF
    official = NOT_APPLICABLE if own else f"{made.official.verdict} by {made.official.checker}"
    lines = [f"strict {made.strict}, official {official}: {folder / 'package'}"]
    if not made.passed:
        whole = CheckResult.of(made.folder, "package", made.findings, made.ruleset)
        lines += [f"    {printable(message)}" for message in made.official.messages if not own]
        lines += [f"    {line}" for line in summary_lines([whole], made.folder.absolute())]
    return "\n".join(lines), not made.passed, {"official": made.official.verdict, "strict": made.strict}
