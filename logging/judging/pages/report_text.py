"""Contents of a report on a race or on result sets, as Markdown for a pull request and as LaTeX for a paper."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from judging.comparison.speedup_ratio import Ratio
from judging.ground.result_files import read_object
from judging.pages.score_table import NOTICE
from judging.pages.table import Table
from judging.scoring.recorded_run import RecordedRun, environment, provenance_of, recorded_run_of
from mlevents.summary import RunSummary
from mlevents.terminal_escape import printable

OPENING: Final = ("verdict", "decision", "control", "problem")
"""First words of the details that open a summary."""
Sets = Mapping[str, Sequence[RunSummary]]  # runs of each set by its label


@dataclass(frozen=True)
class Findings:
    """Contents of a report: verdicts, the captioned table, what else there is to say as lines, and the runs by the
    label of their set; `failed` if a check failed. `ratios` are the comparisons that the report explains."""

    verdicts: Sequence[str]
    caption: str
    table: Table
    details: Sequence[str]
    sets: Sets
    failed: bool
    confidence: float | None = None  # of the intervals in the figure; see `plot_quality`
    ratios: Sequence[Ratio] = ()

    @property
    def opening(self) -> list[tuple[str, str]]:
        """The sentences that a summary begins with, after the name of each."""
        said = [(name, line[12:]) for name in OPENING for line in self.lines(name)]
        if "verdict" not in dict(said):
            said = [*(("verdict", words) for words in self.verdicts), *said]
        return said

    def lines(self, name: str) -> list[str]:
        """Return the details of that name."""
        return [line for line in self.details if line.startswith(f"{name:<12}")]

    @cached_property
    def recorded(self) -> dict[str, RecordedRun]:
        """The first run of each set with the files beside its log, by the label of the set."""
        return {label: recorded_run_of(runs[0].path) for label, runs in self.sets.items() if runs}

    @property
    def commands(self) -> list[str]:
        """The command of each set whose runs recorded one."""
        known = []
        for label, run in self.recorded.items():
            if command := read_object(run.config).get("command") or provenance_of(run).get("command"):
                known.append(printable(str(command) if command == label else f"{label}: {command}"))
        return known

    @property
    def machines(self) -> str:
        """Processors, accelerators, Python and torch of the sets, "not recorded" without any."""
        return "; ".join(filter(None, dict.fromkeys(map(_machine, self.recorded.values())))) or "not recorded"

    @property
    def disturbed(self) -> str:
        """The number of disturbed runs, with one of them, and the ratio without them."""
        runs = sum(map(list, self.sets.values()), list[RunSummary]())
        busy = [f"{run.path.parent.name}/{run.path.name}, {run.disturbances[0]}" for run in runs if run.disturbances]
        without = [f"without them {line[12:]}" for line in self.lines("undisturbed")]
        return "; ".join([f"{len(busy)} of {len(runs)} runs", *(f"such as {load}" for load in busy[:1]), *without])


def as_markdown(findings: Findings) -> str:
    """Return a summary in Markdown, as for a pull request: what the runs say, the table, disturbances, environment and
    commands."""
    blocks = [f"**{name.capitalize()}:** {_escaped(words)}" for name, words in findings.opening]
    if findings.table.rows:
        blocks += ["\n".join(findings.table.mapped(_escaped).markdown()), _escaped(findings.caption)]
    blocks += [_escaped(f"Disturbed: {findings.disturbed}."), _escaped(f"Environment: {findings.machines}.")]
    blocks += ["\n".join(f"    {command}" for command in findings.commands), NOTICE]
    return "\n\n".join(filter(None, blocks)) + "\n"


def as_latex(findings: Findings) -> str:
    """Return a paragraph and a table in LaTeX, as for a paper, with runs, intervals, machine, tuning and disturbances.
    They need no package."""
    said = [words for name, words in findings.opening if name != "decision"]
    said += [*findings.verdicts, *(ratio.sentence for ratio in findings.ratios)]
    said += [f"Tuning: {line[12:]}." for line in findings.lines("tuning") or [f"{'tuning':<12}not recorded"]]
    said += [f"Environment: {findings.machines}.", f"Disturbed: {findings.disturbed}.", NOTICE]
    paragraph = " ".join(_latex(f"{words.rstrip('.')}.") for words in dict.fromkeys(said))
    table = findings.table.mapped(_latex)
    rows = [f"  {' & '.join(cells)} \\\\" for cells in (table.header, *table.rows)]
    columns = "".join("r" if right else "l" for right in findings.table.numeric)
    lines = ["\\begin{table}", "  \\centering", f"  \\caption{{{_latex(findings.caption)}}}"]
    lines += [f"  \\begin{{tabular}}{{{columns}}}", "  \\hline", f"{rows[0]} \\hline", *rows[1:], "  \\hline"]
    return "\n".join([paragraph, "", *lines, "  \\end{tabular}", "\\end{table}", ""])


def _escaped(text: str) -> str:
    """Return a text of a log so that Markdown shows it as it is."""
    return re.sub(r"[\\`*<|]|(?<=\])\(", r"\\\g<0>", printable(text))


def _latex(text: str) -> str:
    """Return a text of a log so that LaTeX shows it as it is."""
    named = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    named |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", "[": "{[}"}
    return re.sub(r"[\\~^<>|\[]|[&%$#_{}]", lambda found: named.get(found[0], f"\\{found[0]}"), printable(text))


def _machine(run: RecordedRun) -> str:
    system, (_, versions) = read_object(run.system), environment(run.file("environment.txt"))
    cores, known = f" of {system.get('host_processor_core_count')} cores", []
    for kind, more in (("host_processor", cores), ("accelerator", "")):
        count, model = (system.get(f"{kind}{field}") for field in ("s_per_node", "_model_name"))
        known += [f"{count} x {model}{more}"] if count not in (None, "", "0") else []
    return ", ".join([*known, *(f"{name} {versions[name]}" for name in ("python", "torch") if name in versions)])
