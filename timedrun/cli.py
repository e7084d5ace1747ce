"""The `timedrun` command: parse the command line, call the verb, turn errors into a message and an exit code."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import textwrap
from argparse import Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import timedrun
from mlevents.terminal_escape import printable, printable_lines
from timedrun import stdio
from timedrun.commands import options
from timedrun.distributed import launch_env, parent_death_signal
from timedrun.errors import ExitCode, describe, in_benchmark

VERBS: Final = {
    "Run": {
        "prepare": "prepare, check or index a dataset",
        "preflight": "check a config, this machine, and the log and package of a dry run",
        "run": "train once, on the clock",
        "race": "run configs N times each, interleaved; check, score, package, plot and compare them",
        "sweep": "run configs at several lengths of their schedules, for curves of quality against time",
        "bench": "measure data loaders, or training steps of configs: throughput, MFU, memory",
        "auto": "choose the fastest settings of a config on this machine, by measured steps",
        "profile": "measure where the time of a config's steps goes, and the bottleneck",
    },
    "Judge": {
        "check": "check logs, result sets or packages, strictly and with MLCommons' checkers",
        "score": "score result sets: time to train",
        "compare": "compute the speed-up of the second result set over the first, with its interval",
        "reproduce": "recompute a package's scores, or repeat its runs, and report whether they match",
        "audit": "check, score and compare all results of a published round",
        "referee": "run somebody else's training script isolated, time it, and judge whether its result is true",
        "tradeoff": "compare configs by their curves of quality against time, at equal time and at equal quality",
        "plot": "plot quality, training loss or throughput over time of result sets",
        "report": "write a race, a sweep or result sets as one HTML file, with figures, configs and verdicts",
        "explore": "write result sets as an HTML page with plots, filters and a card per run",
        "export": "export the values of logs as CSV, or for TensorBoard or MLflow",
    },
    "Submit": {
        "forecast": "compute the probability that a closed set passes the check of reference convergence (RCP)",
        "system": "generate MLPerf's system description and list the fields to fill in",
        "package": "package result sets in MLPerf's layout",
    },
    "Inspect": {
        "list": "list benchmarks and their configs, or `list methods`",
        "show": "show the settings of a config, how two configs differ, or `show method NAME`",
        "new": "write a benchmark to start from",
        "doctor": "report the hardware and software that a run can use",
        "completion": 'print the completion script of a shell: eval "$(timedrun completion bash)"',
    },
}
"""Help of each verb by purpose. A verb is the function of its name in the module of its name in `timedrun.commands`,
which is imported only when the verb is called; `options.add_<verb>` adds its options."""

TAKE_OVERRIDES: Final = ("show", "prepare", "run", "preflight", "race", "sweep", "bench", "profile", "auto")
"""Verbs for which arguments that argparse does not know are config overrides, parsed by tyro."""

REPLACED: Final = {
    "--with": "CONFIG+METHOD, such as 'baseline+ema(half_life=8)'",
    "--without": "CONFIG-METHOD, such as methods-blurpool",
    "--only": "CONFIG+METHOD on a config that has no others, such as baseline+blurpool+label_smoothing",
}
"""What is given in place of an option that changed the methods of a config."""

SHOW_SETTINGS: Final = ("show", "prepare", "run", "preflight", "profile", "auto")
"""Verbs whose --help after a benchmark and a config prints the options of the config's settings."""

PREPARE_LONG: Final = ("run", "race", "sweep", "preflight", "reproduce", "bench", "profile", "auto")
"""Verbs that name the stages before their first output, even where standard error is not a terminal."""


class _Version(Action):
    """Option that prints the version, which is looked up only then."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        print(f"timedrun {timedrun.__version__}")
        parser.exit()


def parser(*, describe_verbs: bool = False) -> ArgumentParser:
    """Return the parser of all verbs and their options.

    describe_verbs: with the help of each verb in argparse's list of them, for shell completion, not by purpose.
    """
    groups = [f"{name.lower()}:\n" + "\n".join(_help_lines(verbs)) for name, verbs in VERBS.items()]
    top = ArgumentParser(
        prog="timedrun",
        description="Train to a fixed quality on the clock, MLPerf style.",
        epilog="\n\n".join([*groups, "`timedrun VERB --help` describes the options of a verb."]),
        formatter_class=RawDescriptionHelpFormatter,
    )
    top.add_argument("-V", "--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", help="one of the verbs below")
    for name, text in {name: text for group in VERBS.values() for name, text in group.items()}.items():
        listed: dict[str, Any] = {"help": text} if describe_verbs else {}
        added = verbs.add_parser(name, description=text, allow_abbrev=False, **listed)
        added.add_argument("--json", action="store_true", help="machine-readable output")
        getattr(options, f"add_{name}")(added)
    return top


def _help_lines(verbs: Mapping[str, str]) -> Iterator[str]:
    width = min(100, stdio.terminal_columns(sys.stdout) or 100)
    for name, text in verbs.items():
        yield from textwrap.wrap(text, width, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code (see `ExitCode`)."""
    stdio.open_closed()
    # torch's modules would be collected for half a second when the process ends. Not with Triton: its bindings report
    # each object that is not collected.
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
    words = list(sys.argv[1:] if argv is None else argv)
    top = parser()
    if not words:
        top.print_help(sys.stderr)
        return int(ExitCode.USAGE)
    helps = {"-h", "--help"} & {*words[3:]}
    if helps and words[0] in SHOW_SETTINGS and not any(word.startswith("-") for word in words[1:3]):
        arguments, rest = top.parse_known_args([word for word in words if word not in helps])
        rest.append("--help")  # of the settings, printed by tyro
    else:
        arguments, rest = top.parse_known_args(words)
    verb = arguments.verb
    if rest and verb not in TAKE_OVERRIDES:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if gone := next((word for word in rest if word in REPLACED), None):
        top.error(f"there is no option {gone}: give {REPLACED[gone]}")
    try:
        parent_death_signal.obey_environment()
        announce(verb, arguments)
        function = getattr(importlib.import_module(f"timedrun.commands.{verb}"), verb)
        if verb not in PREPARE_LONG:
            stdio.stage("")
        extra = (rest, words) if verb == "run" else (rest,) if verb in TAKE_OVERRIDES else ()
        code = function(arguments, *extra)
        sys.stdout.flush()
        return int(code)
    except (Exception, KeyboardInterrupt) as error:
        said = describe(error)
        if said is None and (found := in_benchmark(error)):
            shown, place = found
            stdio.message(printable_lines(shown))
            said = ExitCode.ERROR, printable(f"{place} raised {type(error).__name__}: {error}")
        if said is None:
            raise
        if said[1]:
            stdio.message(f"timedrun {verb}: {said[1]}")
        return int(said[0])
    finally:
        stdio.stage("")
        for stream in (sys.stdout, sys.stderr):
            stdio.flush(stream)


def announce(verb: str, arguments: Namespace) -> None:
    """Show that torch is being imported, which takes a second or many, if `verb` needs it; once a run, not a rank."""
    again = verb != "reproduce" or arguments.run
    ranks = (os.environ.get(variables[1], "0") for variables in launch_env.VARIABLES)
    if again and verb in (*PREPARE_LONG, "show", "prepare", "system", "doctor", "package") and set(ranks) == {"0"}:
        name = getattr(arguments, "label", None) or f"timedrun {verb}"
        stdio.stage(f"{name}: preparing: importing torch", terminal_only=verb not in PREPARE_LONG)
