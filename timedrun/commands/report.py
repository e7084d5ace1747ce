"""`timedrun report`: a race or result sets as one HTML file; or Markdown, a figure, or their values."""

import argparse
import json
from pathlib import Path

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError
from judging.ground.result_files import existing, write_output
from judging.pages import export
from judging.pages import plot as plots
from judging.pages.report_page import as_page, drawn
from judging.pages.report_text import as_latex, as_markdown
from timedrun.commands.report_findings import of_race, of_sets
from timedrun.racing import race_file

KINDS = ("figure", "csv", "tensorboard")
"""Options that name what is written in place of a page."""
TEXTS = {"markdown": (".md", as_markdown), "paper": (".tex", as_latex)}
"""Options for a text in place of a page, with the end of its file's name and the function that writes it."""


def report(arguments: argparse.Namespace) -> ExitCode:
    """Write the page, the figure or the values; exit code 1 if a check of the page fails."""
    chosen = [kind for kind in KINDS if getattr(arguments, kind)]
    texts = [kind for kind in TEXTS if getattr(arguments, kind)]
    if len(chosen + texts) > 1 or (chosen and arguments.out):
        raise UsageError("give one of --out, --markdown, --paper, --figure, --csv, --tensorboard; nothing was written.")
    labels = dict(arguments.label)
    if arguments.what != "quality" and not arguments.figure:
        raise UsageError("--what chooses the values of --figure; add it, or leave both out.")
    path = Path(arguments.paths[0])
    race = race_file.planned(path) if len(arguments.paths) == 1 else None
    if arguments.figure:
        level = race.confidence if race and race.comparisons else None
        plots.plot_quality(plots.labelled_sets(arguments.paths, labels), Path(arguments.figure), arguments.what, level)
        print(json.dumps({"figure": arguments.figure}) if arguments.json else f"figure: {arguments.figure}")
        return ExitCode.OK
    for kind in chosen:
        runs, out = export.runs_at([*map(Path, arguments.paths)]), getattr(arguments, kind)
        count = export.WRITERS[kind](runs, out)
        print(json.dumps({"exported": count, "to": str(out)}) if arguments.json else f"Exported {count} runs to {out}.")
        return ExitCode.OK
    if len(arguments.paths) > 1 or len([*path.glob("*/results")]) > 1:
        why = "reports on one race or folder of result sets; `timedrun check ROUND --audit` reports on a round"
        raise UsageError(f"timedrun report {why}; nothing was written.")
    kind, short = TEXTS.get(text := next(iter(texts), ""), (".html", None))
    out = Path(arguments.out or path / f"report{kind}")
    if out.suffix != kind:
        raise UsageError(f"--out {out}: the report is an {kind} file; nothing was written.")
    stdio.stage("timedrun report: checks")
    if not path.is_dir() or not existing(path):
        raise UsageError(f"{path} is not a folder with logs (result_*.txt); nothing was written.")
    figures: dict[str, str] = {}
    findings = of_race(race, path, figures, labels) if race else of_sets(path, labels)
    page, failed = short(findings) if short else "", findings.failed
    if not page:
        stdio.stage("timedrun report: figures")
        figures = figures or drawn(findings.sets, findings.confidence)  # a sweep's runs are points, not curves
        page = as_page(f"Report on {path.resolve().name}", findings, figures, path)
    stdio.stage("")
    if text and not arguments.out:
        stdio.report(page.rstrip(), {text: page}, as_json=arguments.json)
        return ExitCode.ERROR if failed else ExitCode.OK
    write_output(out, page)
    print(json.dumps({"report": str(out)}) if arguments.json else f"report: {out}")
    return ExitCode.ERROR if failed else ExitCode.OK
