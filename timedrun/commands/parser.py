"""The parser of the command line: every verb, by purpose, with its options."""

import sys
import textwrap
from argparse import Action, ArgumentError, ArgumentParser, RawDescriptionHelpFormatter, _SubParsersAction
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import timedrun
from judging.ground import stdio
from judging.ground.errors import nearest
from timedrun.commands import options

VERBS: Final = {
    "Start with": {
        "run": "train once, on the clock",
        "race": "run configs or command lines N times each, interleaved; check, score, package, plot and compare them",
        "check": "check logs, result sets, packages or a round, strictly and with MLCommons' checkers",
        "report": "write a race or result sets as one HTML file; or a figure, CSV or TensorBoard's events",
        "show": "list benchmarks, configs and methods; show the settings of a config, how two differ, or a method",
        "doctor": "report the hardware and software that a run can use; MLPerf's system description",
    },
    "Prepare and run": {
        "prepare": "prepare, check or index a dataset",
        "preflight": "check a config, this machine, and the log and package of a dry run",
        "tune": "search settings of each side of a race, in equal machine time, on a split of their own",
        "new": "write a benchmark or a method to start from",
        "auto": "choose the fastest settings of a config on this machine, by measured steps",
        "profile": "measure where the time of a config's steps goes, or the throughput of several configs",
    },
    "Judge": {
        "score": "score result sets: time to train, or the probability that a closed set passes the RCP check",
        "compare": "compute the speed-up of a set over another, or compare curves of quality against time",
        "reproduce": "recompute a package's scores, or repeat its runs, and report whether they match",
        "referee": "run somebody else's training script isolated, time it, and judge whether its result is true",
        "explore": "write result sets as an HTML page with plots, filters and a card per run",
    },
    "Submit": {"package": "package result sets in MLPerf's layout"},
}
"""Help of each verb by purpose. A verb is the function of its name in the module of its name in `timedrun.commands`,
which is imported only when the verb is called; `options.add_<verb>` adds its options."""

CHOICES: Final = {
    "run race": "use run to time one config, race for commands, several configs or several lengths",
    "auto tune": "use auto to compute the same numbers faster, tune to find better hyper-parameters",
    "doctor preflight": "use doctor if a command fails on this machine, preflight to check a config before its run",
    "profile auto": "use profile to see what takes long, auto to get a faster config",
    "score compare": "use score for one set or more, compare for the ratio of two or for curves",
    "check reproduce": "use check to see whether logs keep the rules, reproduce to see whether scores are true",
    "report explore": "use report for one race, a figure or CSV, explore to search many results",
}
"""Verbs that are taken for each other, and which is for what."""

ENDED: Final = {
    "bench": "`timedrun profile --interleaved` times steps, and loaders with the method no_op_model",
    "sweep": "`timedrun race ... --ratios 0.5 1` runs several lengths, `--budgets` those of commands",
    "audit": "`timedrun check ROUND --audit`",
    "forecast": "`timedrun score --forecast PATH`",
    "tradeoff": "`timedrun compare PATH ...` compares the curves of sweeps",
    "plot": "`timedrun report PATH ... --figure FILE`",
    "export": "`timedrun report PATH ... --csv FILE` or `--tensorboard DIR`",
    "system": "`timedrun doctor --system [--answers FILE]`",
    "completion": "`timedrun --completion bash`",
    "list": "`timedrun show [BENCHMARK]`, or `timedrun show methods`",
    "check --by": "findings are grouped by rule; check the folder of one submitter for its own",
}
"""Verbs and options that ended, and what is in their place."""


class _Version(Action):
    """Option that prints the version, which is looked up only then."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        print(f"timedrun {timedrun.__version__}")
        parser.exit()


class _Completion(Action):
    """Option that prints the script which completes verbs, options and files in a shell."""

    def __call__(self, given: ArgumentParser, _: object, shell: Any, *__: object) -> None:
        import shtab

        top = parser(describe_verbs=True)
        (verbs,) = (action for action in top._actions if isinstance(action, _SubParsersAction))
        for action in (action for verb in verbs.choices.values() for action in verb._actions):
            if action.metavar in ("PATH", "FILE", "RESULTS", "PUBLISHED", "FOLDER"):
                action.complete = shtab.FILE
        print(shtab.complete(top, shell))
        given.exit()


class _Parser(ArgumentParser):
    """Parser that names the nearest choice where it is given none of its own."""

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            if value in ENDED and action.dest == "verb":
                raise ArgumentError(None, f"`timedrun {value}` ended: {ENDED[value]}.")
            near = nearest(str(value), map(str, action.choices))
            raise ArgumentError(action, f"no {value!r}.{near} Choose from: {', '.join(map(str, action.choices))}.")


def parser(*, describe_verbs: bool = False) -> ArgumentParser:
    """Return the parser of all verbs and their options.

    describe_verbs: with the help of each verb in argparse's list of them, for shell completion, not by purpose.
    """
    groups = [f"{name.lower()}:\n" + "\n".join(_help_lines(verbs)) for name, verbs in VERBS.items()]
    choices = "which one:\n" + "\n".join(_which_one(CHOICES.values()))
    top = _Parser(
        prog="timedrun",
        description="Train to a fixed quality on the clock, MLPerf style.",
        epilog="\n\n".join([*groups, choices, "`timedrun VERB --help` describes the options of a verb."]),
        formatter_class=RawDescriptionHelpFormatter,
    )
    top.add_argument("-V", "--version", action=_Version, nargs=0, help="show the version and exit")
    script = 'print the completion script of a shell: eval "$(timedrun --completion bash)"'
    top.add_argument("--completion", action=_Completion, choices=("bash", "zsh"), metavar="SHELL", help=script)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", help="one of the verbs below")
    for name, text in {name: text for group in VERBS.values() for name, text in group.items()}.items():
        listed: dict[str, Any] = {"help": text} if describe_verbs else {}
        added = verbs.add_parser(name, description=text, allow_abbrev=False, **listed)
        added.add_argument("--json", action="store_true", help="machine-readable output")
        getattr(options, f"add_{name}")(added)
        added.set_defaults(parser=added)
        chosen = [text for alike, text in CHOICES.items() if name in alike.split()]
        added.epilog = "\n".join(filter(None, [added.epilog, *_which_one(chosen)])) or None
    return top


def near_options(verb: str, words: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each of `words` that resembles an option of `verb`, or was one, and is none."""
    known = ArgumentParser()
    getattr(options, f"add_{verb}")(known)
    for word in (word.partition("=")[0] for word in words if word.startswith("--")):
        if ended := ENDED.get(f"{verb} {word}"):
            yield f"`{verb} {word}` ended: {ended}."
        elif near := nearest(word, known._option_string_actions, cutoff=0.7):
            yield f"{verb} has no option {word}.{near}"


def _which_one(sentences: Iterable[str]) -> list[str]:
    width = min(100, stdio.terminal_columns(sys.stdout) or 100)
    return [textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    ") for text in sentences]


def _help_lines(verbs: Mapping[str, str]) -> Iterator[str]:
    width = min(100, stdio.terminal_columns(sys.stdout) or 100)
    for name, text in verbs.items():
        yield from textwrap.wrap(text, width, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)
