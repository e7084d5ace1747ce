"""The `timedrun` command: reads the command line, calls the verb, turns errors into words and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from timedrun import stdio
from timedrun.distributed import parent_death_signal
from timedrun.distributed.launch_env import LAUNCHERS
from timedrun.errors import ExitCode, describe


def parser() -> argparse.ArgumentParser:
    """Every verb and its options. What `run` and `show` do not know is an override of the config, read by tyro."""
    top = argparse.ArgumentParser(prog="timedrun", description="Train to a fixed quality on the clock, MLPerf style.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, words: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=words, description=words, allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="machine-readable output")
        return added

    listing = verb("list", "benchmarks and their configs")
    listing.add_argument("benchmark", nargs="?")

    def add_config(to: argparse.ArgumentParser, *, several: bool = False, optional: bool = False) -> None:
        to.add_argument("benchmark", help="import name, such as image_classification")
        if several:
            to.add_argument("configs", nargs="+", metavar="CONFIG")
        else:
            to.add_argument(
                "config", nargs="?" if optional else None, default="baseline", help="baseline, methods, ..."
            )
        to.add_argument("--data", help="dataset, the first part of a config's name")

    def add_methods(to: argparse.ArgumentParser) -> None:
        to.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="keep only these methods")
        to.add_argument("--without", nargs="+", default=[], metavar="METHOD", help="leave these methods out")

    def add_launch(to: argparse.ArgumentParser, results: str, ranks: int | None = 1) -> None:
        to.add_argument("--results", help=f"folder for result_N.txt and run_N/ (default: {results})")
        usual = ranks or "as many as the original had"
        to.add_argument("--ranks", type=positive, default=ranks, help=f"processes on this machine (default: {usual})")
        to.add_argument("--threads", type=int, default=0, help="CPU threads a rank (default: torch's choice)")
        to.add_argument("--data-folder", default=os.environ.get("TIMEDRUN_DATA"), help="where the dataset lies")
        to.add_argument(
            "--checkpoint-minutes",
            type=not_negative,
            default=0.0,
            metavar="MINUTES",
            help="save what --resume goes on from so often, beside when a signal stops the run (default: then only)",
        )
        to.add_argument(
            "--restarts",
            type=whole,
            default=0,
            metavar="K",
            help="where a rank is lost, go on from the last checkpoint, at most K times (default 0; not in a closed"
            " division's run)",
        )

    show = verb("show", "every setting of a config, or the difference of two")
    add_config(show, optional=True)
    add_methods(show)
    show.add_argument("--diff", nargs=2, metavar="CONFIG", help="show only where these two differ")

    prepare = verb("prepare", "check or index a dataset before any run")
    add_config(prepare, optional=True)
    prepare.add_argument("--data-folder", default=os.environ.get("TIMEDRUN_DATA"))
    prepare.add_argument("--decode", action="store_true", help="read every image or byte and name what is broken")
    prepare.add_argument("--workers", type=positive, default=os.cpu_count() or 1)
    prepare.add_argument(
        "--images", nargs="+", default=[], metavar="PATH", help="a folder of train/ and val/, or ImageNet's tar files"
    )
    prepare.add_argument(
        "--validation-labels", metavar="FILE", help="ImageNet's devkit, or lines of file name and class, for its tars"
    )
    prepare.add_argument("--skip-broken", action="store_true", help="leave out and list images that cannot be decoded")
    prepare.add_argument("--text", nargs="+", default=[], metavar="PATH", help="training text; --data-folder is made")
    prepare.add_argument("--evaluation-text", nargs="+", default=[], metavar="PATH", help="default: some is held out")
    prepare.add_argument("--vocabulary", metavar="FILE", help="vocab.txt or encoder.json (default: made from the text)")
    prepare.add_argument("--merges", metavar="FILE", help="vocab.bpe, beside an encoder.json")

    run = verb("run", "one timed run")
    add_config(run)
    add_methods(run)
    add_launch(run, "runs/<benchmark>/<config>")
    run.add_argument("--number", type=int, help="N of result_N.txt (default: the next free one)")
    run.add_argument("--resume", action="store_true", help="finish a run that a signal stopped")
    run.add_argument("--label", help="what progress lines call this run")
    run.add_argument("--nodes", type=positive, metavar="M", help="machines, each started with --ranks ranks")
    run.add_argument("--node-rank", type=whole, metavar="K", help="which of them this one is, from 0")
    run.add_argument("--master", metavar="HOST:PORT", help="where the ranks of all nodes meet: an address of node 0")
    run.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="auto",
        help="whose variables say which rank this process is (default: whichever are set; none: a run of its own)",
    )

    preflight = verb("preflight", "a config's log and package, made up before any run, through all checkers")
    add_config(preflight)
    add_methods(preflight)
    preflight.add_argument("--ranks", type=positive, default=1, help="processes of a run (default 1)")
    preflight.add_argument("--data-folder", default=os.environ.get("TIMEDRUN_DATA"), help="where the dataset lies")
    preflight.add_argument("--ruleset", help="such as 2.0.0 (default: that of the benchmark's round)")
    preflight.add_argument("--answers", metavar="FILE", help="answers for the system description")

    race = verb("race", "several configs, N runs each, interleaved; checked, scored, packaged, drawn and compared")
    add_config(race, several=True)
    add_launch(race, "runs/<benchmark>/race_N")
    race.add_argument("--runs", type=positive, default=5, help="runs of each config (default 5)")
    race.add_argument("--first-seed", type=int, default=1)

    check = verb("check", "strict and MLCommons' checks of results, folders or packages")
    check.add_argument("paths", nargs="+", metavar="PATH")
    check.add_argument("--ruleset", help="such as 2.0.0 (default: that of the benchmark's round)")
    check.add_argument(
        "--official", action=argparse.BooleanOptionalAction, default=True, help="run MLCommons' checker too"
    )

    score = verb("score", "time to train of result sets, of one submitter or a whole round")
    score.add_argument("paths", nargs="+", metavar="PATH")
    score.add_argument("--ruleset", help="such as 2.0.0 (default: that of the benchmark's round)")
    score.add_argument("--csv", metavar="FILE", help="write the scores there too, one line a set")

    compare = verb("compare", "how much faster the second set of results is than the first, with an interval")
    compare.add_argument("first", metavar="FIRST")
    compare.add_argument("second", metavar="SECOND")
    compare.add_argument("--paired", action="store_true", help="the runs were interleaved: result_N with result_N")
    compare.add_argument(
        "--allow", nargs="+", default=[], metavar="WHAT", help="compare although these differ: hardware, data, target"
    )

    system = verb("system", "MLPerf's description of this machine, and what a person has to add to it")
    system.add_argument("--answers", metavar="FILE", help="answers given so far")
    system.add_argument("--out", metavar="FILE", help="write what is still asked for there, to be filled in")

    package = verb("package", "result sets as one package in MLPerf's layout")
    package.add_argument("sets", nargs="+", metavar="RESULTS", help="folders written by run or race")
    package.add_argument("--out", required=True)
    package.add_argument("--submitter", help="default: the organization that the logs name")
    package.add_argument("--ruleset")
    package.add_argument("--answers", metavar="FILE", help="what `timedrun system --out` asked for, filled in")

    bench = verb("bench", "how fast this machine loads data: images or sequences a second of each loader, interleaved")
    bench.add_argument("what", choices=["loader"])
    add_config(bench, optional=True)
    bench.add_argument("--images", nargs="+", default=[], metavar="PATH", help="as for prepare (default: synthetic)")
    bench.add_argument("--stores", metavar="FOLDER", help="keep the prepared stores there, or use those that are there")
    bench.add_argument("--data-folder", default=os.environ.get("TIMEDRUN_DATA"), help="a store of text, for language")
    bench.add_argument("--loaders", nargs="+", default=[], metavar="NAME", help="default: all that this machine has")
    bench.add_argument("--sizes", nargs="+", type=positive, default=[224, 88], metavar="PIXELS")
    bench.add_argument("--count", type=positive, default=2000, help="images of a pass (default 2000)")
    bench.add_argument("--batch", type=positive, default=128, help="images or sequences of a batch (default 128)")
    bench.add_argument("--repeats", type=positive, default=5, help="passes of each loader (default 5)")
    bench.add_argument("--workers", type=positive, default=os.cpu_count() or 1, help="threads or processes a loader")
    bench.add_argument("--out", metavar="FILE", help="write every number there as JSON")

    reproduce = verb("reproduce", "recompute a package's scores, or run a result again, and say what came of it")
    reproduce.add_argument("path", metavar="PATH", help="a package, or results written by run or race")
    reproduce.add_argument("--claims", metavar="FILE", help="scores claimed elsewhere (default: the package's own)")
    reproduce.add_argument("--run", action="store_true", help="run the results again, each from its own config")
    reproduce.add_argument("--runs", type=positive, help="how many of them (default: all)")
    add_launch(reproduce, "runs/reproduced/<name>_N", ranks=None)

    plot = verb("plot", "quality over time of result sets")
    plot.add_argument("sets", nargs="+", metavar="RESULTS")
    plot.add_argument("--out", required=True, help="a .png, .svg or .pdf file")
    return top


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def whole(text: str) -> int:
    """An integer of at least 0, for argparse."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value


def not_negative(text: str) -> float:
    """A finite number of at least 0, for argparse."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit code (0 fine, 1 error or findings, 2 usage, 3 target not reached, 4 a rank was
    lost, 75 resumable, 129, 130 and 143 ended by SIGHUP, SIGINT or SIGTERM, 141 nobody reads the output)."""
    stdio.open_closed()
    words = list(sys.argv[1:] if argv is None else argv)
    top = parser()
    arguments, rest = top.parse_known_args(words)
    if rest and not _VERBS[arguments.verb][2]:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        parent_death_signal.obey_environment()
        code = dispatch(arguments, rest, words)
        sys.stdout.flush()
        return int(code)
    except (Exception, KeyboardInterrupt) as error:
        said = describe(error)
        if said is None:
            raise
        if said[1]:
            stdio.write(f"timedrun {arguments.verb}: {said[1]}\n")
        return int(said[0])
    finally:
        for stream in (sys.stdout, sys.stderr):
            stdio.flush(stream)


def dispatch(arguments: argparse.Namespace, rest: list[str], words: list[str]) -> ExitCode:
    """Call the verb. Its module is imported here so that a report does not wait for torch."""
    module, function, takes_rest = _VERBS[arguments.verb]
    verb: Callable[..., ExitCode] = getattr(importlib.import_module(f"timedrun.commands.{module}"), function)
    if arguments.verb == "run":
        return verb(arguments, rest, words)
    return verb(arguments, rest) if takes_rest else verb(arguments)


_VERBS: Final = {  # verb: module of timedrun.commands, function, whether it takes overrides of a config
    "list": ("list", "list_benchmarks", False),
    "show": ("show", "show", True),
    "run": ("run", "run", True),
    "prepare": ("prepare", "prepare", True),
    "preflight": ("preflight", "preflight", True),
    "bench": ("bench", "bench", True),
    "race": ("race", "race", False),
    "check": ("check", "check", False),
    "score": ("score", "score", False),
    "compare": ("compare", "compare", False),
    "system": ("system", "system", False),
    "package": ("package", "package", False),
    "reproduce": ("reproduce", "reproduce", False),
    "plot": ("plot", "plot", False),
}
