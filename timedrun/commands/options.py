"""Options of every verb, added by `add_<verb>`. Imports nothing heavy, so that `--help` does not wait for torch."""

import math
import os
import re
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from judging.ground.cores import usable_cores
from judging.ground.race_labels import resolved

RULESET_HELP = "ruleset such as 2.0.0, 2.0 or v2.0 (default: by the round's folder, else by benchmark and date)"
PRICE_HELP = "US dollars per hour of the system"


def at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Return a parser of finite numbers of at least `least`."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise ArgumentTypeError(f"{text} is not a finite number of at least {least}")
        return value

    return number


positive, not_negative_int = at_least(1), at_least(0)


def above_zero(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def price(text: str) -> float:
    try:
        return at_least(0.001, float)(text)
    except ValueError:
        raise ArgumentTypeError(f"{text} is no price: give US dollars per hour of the system, such as 27.45") from None


def system_price(text: str) -> tuple[str, float, bool]:
    """Parse [SYSTEM=]USD[/accelerator]: a pattern of systems' names, a price, and whether it is of each accelerator."""
    pattern, _, usd = text.rpartition("=")
    return pattern or "*", price(usd.removesuffix("/accelerator")), usd.endswith("/accelerator")


def label_of(text: str) -> tuple[str, str]:
    """Parse NAME=TEXT, where the name may have equals signs."""
    name, _, label = text.rpartition("=")
    if not name or not label.strip():
        raise ArgumentTypeError(f"{text} is not NAME=TEXT")
    return name, label.strip()


def budgets_of(text: str) -> list[str]:
    """Parse budgets, as typed, in the order of their numbers."""
    budgets = sorted(text.split(","), key=above_zero)
    if len({*map(float, budgets)}) < len(budgets):
        raise ArgumentTypeError(f"{text} has a budget twice")
    return [budget.strip() for budget in budgets]


def path(text: str) -> Path | None:
    """Parse a path; return None for an empty text, as from an unset variable."""
    return Path(text) if text else None


def ruleset(text: str) -> str:
    """Parse the name of a round or of its ruleset: v2.0 and 2.0 are 2.0.0."""
    name = re.fullmatch(r"v?([0-9]+[.][0-9]+)", text)
    return f"{name[1]}.0" if name else text


CONFIG_HELP = """
configs:
  CONFIG is the name of a config (`timedrun show`), or a JSON file as `timedrun
  show --json` prints it. +METHOD, +METHOD(field=value,...) and
  -METHOD after it add, change and leave out methods; your own is module:Class
  (`timedrun new method NAME`).
  Each setting is an option, too: `timedrun show BENCHMARK CONFIG` lists the
  settings, `timedrun run BENCHMARK CONFIG --help` their options.
  A config with changed settings is named after them, as in
  digits_methods-3f2a91c0, and so is the folder of its runs. All runs in a
  folder have the same settings and a seed each: without --seed, the config's
  own (usually 1), or the lowest that no run in the folder has.

examples:
  timedrun run image_classification methods
  timedrun run image_classification methods-blurpool --runs 5
  timedrun run image_classification 'baseline+ema(half_life=40)' --seed 7
  timedrun run image_classification methods --optimizer.peak-lr 0.4
  timedrun show image_classification methods --json > my.json
  timedrun run image_classification my.json --global-batch 32 --name small
  timedrun show image_classification --diff my.json methods
"""


RACE_HELP = """
Overrides are for all configs (--optimizer.peak-lr 0.1) or for the first, second, ... alone (--a.optimizer.peak-lr 0.1).

The clock of a command is timedrun's: from the start of the process (or a line with --start) until the first evaluation
that reaches the target (or a line with --stop), as the lines arrive. Each run becomes an MLPerf log with its command,
environment, source and the machine's load.

  timedrun race image_classification baseline methods --runs 5
  timedrun race image_classification baseline methods --ratios 0.5 1 2
  timedrun race command 'python train.py' 'python train.py --lr 0.02' --quality 'val_loss:{}' --target 3.28 --lower
  timedrun race command --at main --at my-branch --quality json:accuracy --target 0.94 -- python train.py
  timedrun race command 'python train.py --steps {budget}' --budgets 100,200,400 --quality json:accuracy --target 0.94

A file of TOML may hold the options and, as `sides`, a list of configs or command lines, or of {command, label}, and
what is rare: metric, reported, log, seed_variable, stop_at_target, share, repo, split, unpaired_seeds,
baseline_ratios, checkpoint_minutes; first_seed of a tuning.
"""


def add_new(parser: ArgumentParser) -> None:
    parser.add_argument("kind", choices=("benchmark", "method"), help="what to write")
    parser.add_argument("name", help="name of the new package or module, such as my_benchmark")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where (default: here)")


def add_show(parser: ArgumentParser) -> None:
    _add_config(parser, optional=True, described=True, listed=True)
    parser.set_defaults(config=None)
    parser.description = (
        "Show the settings of a config. Without one, list the configs of a benchmark; without a benchmark, all of them."
        " `timedrun show methods` lists the methods, `timedrun show method NAME` shows the card of one, or of your"
        " module:Class."
    )
    parser.add_argument("--diff", nargs=2, metavar="CONFIG", help="show only the settings in which these two differ")


def add_doctor(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--system", action="store_true", help="generate MLPerf's system description; list the fields to fill in")
    answers = "with --system: answers so far; a new FILE gets the questions, for `timedrun package --answers FILE`"
    _add_path(parser, "--answers", answers)


def add_prepare(parser: ArgumentParser) -> None:
    _add_config(parser, optional=True)
    _add_data_folder(parser, "folder of the dataset; created when preparing from --images or --text")
    damaged = "read every byte of prepared data and report damaged files"
    parser.add_argument("--decode", action="store_true", help=damaged)
    processes = "worker processes (default: one per processor)"
    parser.add_argument("--workers", type=positive, default=usable_cores(), help=processes)
    _add_path(parser, "--images", "folder with train/ and val/")
    _add_paths(parser, "--text", "training text")
    _add_paths(parser, "--evaluation-text", "evaluation text (default: a part of the training text)")
    built = "vocab.txt, or encoder.json beside its vocab.bpe (default: built from the training text)"
    _add_path(parser, "--vocabulary", built)


def add_run(parser: ArgumentParser) -> None:
    _add_config(parser, described=True)
    parser.add_argument("--name", help="name of the config (default: its own; with changes, <config>-<digest>)")
    where = "folder for result_N.txt and run_N/, or the file of a run (default: runs/<benchmark>/<config>)"
    parser.add_argument("--results", help=where)
    parser.add_argument("--ranks", type=positive, default=1, help="processes on this node (default: 1)")
    _add_resources(parser)
    often = "also write a checkpoint every MINUTES minutes (default: only when a signal stops the run)"
    minutes = at_least(0, float)
    parser.add_argument("--checkpoint-minutes", type=minutes, default=0.0, metavar="MINUTES", help=often)
    parser.add_argument("--runs", type=positive, default=1, help="runs, one after another (default 1)")
    parser.add_argument("--resume", action="store_true", help="resume a run that a signal stopped")


def add_preflight(parser: ArgumentParser) -> None:
    _add_config(parser, described=True)
    parser.add_argument("--ranks", type=positive, default=1, help="processes of a run (default 1)")
    _add_resources(parser)
    parser.add_argument("--ruleset", type=ruleset, help=RULESET_HELP)
    _add_path(parser, "--answers", "answers for the system description")


def add_race(parser: ArgumentParser) -> None:
    parser.description = (
        "Run configs, command lines, or one command line at several commits N times each, interleaved; check, score,"
        " package, plot and compare them. At several lengths (--ratios, --budgets), each run goes to its end, for"
        " curves of quality against time."
    )
    parser.formatter_class, parser.epilog = RawDescriptionHelpFormatter, RACE_HELP
    add = parser.add_argument
    _add_sides(parser)
    _add_rounds(parser, "race")
    add("--runs", type=positive, help="runs of each side (default: 5; 3 of each length, 1 of a single command)")
    add("--control", type=at_least(0), default=0, metavar="N", help="run the first side again in the first N rounds")
    until = "end after the round, from the 4th on, by which every comparison is decided; --runs is then the most"
    add("--until-decided", action="store_true", help=until)
    keep = "exit with 0 to keep the last of two sides, 1 to discard it, 4 if inconclusive: 'time < 0.98x and quality'"
    add("--keep-if", metavar="CONDITION", help=keep)
    _add_launch_of_race(parser)
    add("--ablate", action="store_true", help="leave out each method of the last config in turn; add each alone")
    lengths = "lengths of the configs' schedules, as multiples of their own, such as 0.5 1; the first is the baseline"
    add("--ratios", nargs="+", type=above_zero, default=[], metavar="RATIO", help=lengths)
    add("--verbose", action="store_true", help="also print what explains the answer: parts, clocks, energy")
    _add_path(parser, "--answers", "answers for the system description of the package")
    _add_reading(parser)
    add("--start", metavar="PATTERN", help="line at which the clock starts (default: the process's start)")
    add("--stop", metavar="PATTERN", help="line at which the clock stops (default: the target is reached)")
    add("--minutes", type=at_least(0, float), help="end a command that takes longer (default: no limit)")
    commit = "a side is the command at this commit, or `worktree`"
    add("--at", action="append", default=[], metavar="COMMIT", help=commit)
    add("--build", metavar="COMMAND", default="", help="run in the folder of each commit first")
    given = "numbers in place of {budget} in each command, such as 100,200,400"
    add("--budgets", type=budgets_of, default=[], metavar="N,N,...", help=given)


def add_tune(parser: ArgumentParser) -> None:
    parser.description = (
        "Search settings of each config or command line by timed runs on data of their own, interleaved, in equal"
        " machine time; write the chosen ones as files for `race`. The range of a setting is written as"
        " --optimizer.peak-lr 0.05..2, or --a.optimizer.peak-lr ... for the first side alone; in a command as"
        " {lr:0.05..2}."
    )
    _add_sides(parser)
    _add_rounds(parser, "tune")
    parser.set_defaults(runs=1)
    _add_launch_of_race(parser)
    _add_reading(parser)
    each = "machine time of each side, to within one run (default 10)"
    parser.add_argument("--minutes", type=above_zero, default=10.0, help=each)


def _add_sides(parser: ArgumentParser) -> None:
    kinds = "import name of the benchmark of configs; or `command`; or a file of TOML with the whole race"
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK|command|FILE", help=kinds)
    sides = "configs, as for `run`, or command lines; the same one twice is a control"
    parser.add_argument("configs", nargs="*", metavar="SIDE", help=sides)


def _add_rounds(parser: ArgumentParser, verb: str) -> None:
    add = parser.add_argument
    add("--results", help=f"folder of the race (default: runs/<benchmark>/{verb}_N)")
    parser.set_defaults(verbose=False)
    if verb == "race":
        add("--name", help="name of the race: its folder is runs/<benchmark>/NAME")
        add("--first-seed", type=not_negative_int, default=1, help="seed of the first runs (default 1)")
    add("--resume", metavar="FOLDER", help="continue the interrupted runs in FOLDER, and report on it again")


def _add_launch_of_race(parser: ArgumentParser) -> None:
    parser.add_argument("--data", help="dataset: the first part of a config's name")
    parser.add_argument("--ranks", type=positive, default=1, help="processes of a run of a config (default: 1)")
    _add_resources(parser)


def _add_reading(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", metavar="NAME", help="read the output of a known script, such as nanogpt or timm")
    add("--quality", help="pattern of an evaluation with {} for its value, such as 'val_loss:{}'; json:KEY; or mllog")
    target = "quality at which the clock of a command, or the trial of a config, stops; of lengths only recorded"
    add("--target", type=float, metavar="QUALITY", help=target)
    add("--lower", action=BooleanOptionalAction, help="lower quality of commands is better")


def add_check(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=resolved, metavar="PATH", help="log, folder of logs, package or round")
    add("--ruleset", type=ruleset, help=RULESET_HELP)
    add("--official", action=BooleanOptionalAction, default=True, help="also run MLCommons' checkers")
    add("--quiet", action="store_true", help="print the totals only")
    whole = "check, score and compare all results of a round (SUBMITTER/{results,systems})"
    add("--audit", action="store_true", help=whole)


def add_score(parser: ArgumentParser) -> None:
    add = parser.add_argument
    parser.epilog = (
        "--forecast: the probability that a closed set of N runs passes the check of reference convergence (RCP),"
        " unscaled or scaled, and the number of runs needed to tell on which side of the reference their mean is."
        " Model: epochs or samples to converge are independent draws from one normal distribution, with the mean and"
        " deviation of the given runs, or of the reference's own; every run converges."
    )
    add("paths", nargs="+", type=resolved, metavar="PATH", help="log, folder of logs, package or round")
    add("--ruleset", type=ruleset, help=RULESET_HELP)
    add("--verbose", action="store_true", help="also print all that is known of each set")
    _add_price(parser, f"also show the cost: {PRICE_HELP}")
    fixed = "test that the mean of runs of one fixed length reaches QUALITY; exit code 1 unless every set's does"
    add("--target-test", type=float, metavar="QUALITY", help=fixed)
    passes = "compute the probability that such a set, or one of a benchmark named as PATH, passes the RCP check"
    add("--forecast", action="store_true", help=passes)
    add("--batch-size", type=positive, help="with --forecast: global batch size (default: that of the logs)")


def add_referee(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("submission", type=Path, metavar="SUBMISSION", help="folder with submission.py, or one file")
    tokens = "file of tokens (.npy, or .bin as the GPT speed runs write) or of images (.bin of CIFAR-10's binary "
    tokens += "version), or folder of such files"
    add("--train", type=Path, required=True, metavar="PATH", help=tokens)
    add("--validation", type=Path, required=True, metavar="PATH", help=f"{tokens}; never shown as a file")
    add("--vocabulary", type=positive, metavar="N", help="of text: number of token ids")
    add("--context", type=positive, metavar="N", help="of text: tokens of a row that is asked about")
    add("--classes", type=positive, default=0, metavar="N", help="of images, in place of both: number of classes")
    reach = "validation loss in nats, or accuracy of images, to reach; of several runs the mean, with p < 0.01"
    add("--target", type=above_zero, metavar="X", help=reach)
    several = "examinations, each with other seeds (default: 1); one with a breach ends the series"
    add("--runs", type=positive, default=1, metavar="N", help=several)
    other = "another submission, such as a record: examine both in turns and compare their times"
    _add_path(parser, "--against", other)
    add("--device", default="cpu", help="torch's name of the device (default: cpu)")
    add("--threads", type=positive, default=usable_cores(), help="CPU threads (default: all)")
    first = "also report the loss over the first TOKENS of the validation text (default: none; without a number: "
    first += "10,485,760, as the GPT speed runs)"
    add("--prefix", type=positive, nargs="?", default=0, const=10_485_760, metavar="TOKENS", help=first)
    launched = "train in N processes with torchrun's environment (default: one process without it)"
    add("--ranks", type=positive, default=0, metavar="N", help=launched)
    add("--budget-seconds", type=above_zero, default=3600, metavar="S", help="limit of the training (default: 3600)")
    half = "limit of memory (default: half of the machine's, at most 32)"
    add("--memory", type=above_zero, metavar="GIB", help=half)
    rare = "file of TOML with other limits: prepare_seconds, answer_seconds, late_seconds, processes, rows, tolerance,"
    rare += " margin, scratch (docs/referee.md)"
    _add_path(parser, "--limits", rare)
    fixed = "token ids that keep their number in the renumbered text, such as the one between documents"
    add("--fixed", type=not_negative_int, nargs="+", default=[], metavar="ID", help=fixed)
    add("--seed", type=not_negative_int, help="seed of all draws, a secret until the end (default: random, reported)")
    unsafe = "run the code as a plain process with all of your rights; the verdict says so"
    add("--no-sandbox", action="store_true", help=unsafe)


def add_compare(parser: ArgumentParser) -> None:
    parser.description = (
        "Compute the speed-up of the second result set over the first, with its interval. Of a sweep, or of sets of"
        " several lengths: compare their curves of quality against time, at equal time and at equal quality."
    )
    add = parser.add_argument
    both = "two result sets; a race and two of its sides by label, folder or letter; or sweeps and sets, for curves"
    add("paths", nargs="+", type=resolved, metavar="PATH", help=both)
    add("--verbose", action="store_true", help="also print portable score, energy, qualities and disturbed runs")
    paired = "pair result_N with result_N of interleaved runs (default: for two sides of one race)"
    add("--paired", action=BooleanOptionalAction, help=paired)
    kinds = "compare despite differences of this kind: hardware, data, target"
    add("--allow", nargs="+", default=[], metavar="KIND", help=kinds)
    _add_price(parser, f"also show the costs, of all sets or of each of two: {PRICE_HELP}", nargs="+", default=[])
    add("--baseline", metavar="LABEL", help="curve to compare with (default: the sweep's, or the first)")
    elsewhere = "extrapolate the curves to another machine: output there of `timedrun profile --json`, one file a curve"
    elsewhere += " (default LABEL: the curve of the profiled config)"
    add("--profile", nargs="+", default=[], metavar="[LABEL=]FILE", help=elsewhere)
    asked = parser.add_mutually_exclusive_group()
    when = "answer when each curve has this quality, and for how much"
    asked.add_argument("--quality", type=float, metavar="Q", help=when)
    bought = "answer which quality each curve has after this time, or for this money: 90s, 20min, 20usd"
    asked.add_argument("--budget", metavar="BUDGET", help=bought)
    add("--out", metavar="FILE", help="also plot the curves: a .png, .svg or .pdf file")


def add_package(parser: ArgumentParser) -> None:
    folders = "folder written by run or race, or of another trainer's logs"
    parser.add_argument("sets", nargs="+", type=resolved, metavar="RESULTS", help=folders)
    parser.add_argument("--out", required=True, help="folder to create")
    parser.add_argument("--ruleset", type=ruleset, help=RULESET_HELP)
    _add_path(parser, "--code", "folder with the code of another trainer whose logs are packaged")
    _add_path(parser, "--answers", "completed file from `timedrun doctor --system --answers FILE`")
    parser.add_argument("--models", action="store_true", help="add the models that the runs kept (`run --keep-model`)")


def add_profile(parser: ArgumentParser) -> None:
    parser.description = (
        "Train a few steps at positions of a config's schedule, and report where the time of its run goes, the"
        " bottleneck, and the most that any method can gain (Amdahl's law). Of several configs, written as for `race`,"
        " each the first one with a change: what all changes give together; with --interleaved, of any configs: their"
        " throughput, compared. Nothing is logged."
    )
    _add_config(parser, several=True)
    _add_resources(parser)
    made = "random data in the place of the config's own, which is not needed"
    parser.add_argument("--synthetic", action="store_true", help=made)
    steps = "measured steps at each position, and as many more divided into parts (default 20)"
    parser.add_argument("--steps", type=positive, default=20, help=steps)
    parser.add_argument("--evaluation", action=BooleanOptionalAction, default=False, help="also time one evaluation")
    turns = "measure whole steps of all configs in turns: throughput, MFU, memory, speed-up over the first config"
    parser.add_argument("--interleaved", action="store_true", help=turns)
    _add_path(parser, "--out", "write what --json prints to FILE")


def add_auto(parser: ArgumentParser) -> None:
    parser.description = (
        "Choose the fastest settings of a config on this machine. Each change that leaves the mathematics as it is is"
        " measured in turns with the config as given, alone and among the others, and kept if a step is shown to be"
        " faster and the first losses are equal. One process computes at a time; nothing is logged."
    )
    _add_config(parser, optional=True)
    level = "1: only changes that leave the mathematics as it is (default); 2: of the published or measured recipe"
    parser.set_defaults(config="baseline")
    parser.add_argument("-O", dest="level", type=int, choices=(1, 2), default=1, help=level)
    budget = "-O2: epochs, or of text steps (default: the recipe's own)"
    parser.add_argument("--budget", type=positive, default=0, metavar="N", help=budget)
    tried = "further changes to measure, such as 'precision bf16' or 'data.loader raw'"
    parser.add_argument("--try", nargs="+", default=[], dest="tried", metavar="CHANGE", help=tried)
    parser.add_argument("--minutes", type=above_zero, default=10.0, help="time limit of the search (default 10)")
    _add_resources(parser)
    _add_path(parser, "--out", "file of the chosen config (default: <config>_auto.json)")


def add_reproduce(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="package, or results written by run or race")
    _add_path(parser, "--claims", "claimed scores (default: those of the package's manifest)")
    parser.add_argument("--run", action="store_true", help="repeat the runs, each from its own config")
    parser.add_argument("--runs", type=positive, help="number of runs to repeat per set (default: all)")
    where = "repeat recorded command lines, too, once you have read them, in FOLDER with their source and data"
    parser.add_argument("--commands", type=Path, metavar="FOLDER", help=where)
    parser.add_argument("--results", help="folder of the repeated runs (default: runs/reproduced/<name>_N)")
    _add_resources(parser, "those of the original run")


def add_report(parser: ArgumentParser) -> None:
    add = parser.add_argument
    parser.description = "Write a race, a sweep, a tuning or result sets as one HTML file; or a figure or values."
    add("paths", nargs="+", type=resolved, metavar="PATH", help="folder of a race or result sets; or logs")
    add("--out", metavar="FILE", help="an .html file (default: <PATH>/report.html)")
    add("--markdown", action="store_true", help="print a summary for a pull request, or write it to --out FILE.md")
    add("--paper", action="store_true", help="print a paragraph and a table in LaTeX, or write them to --out FILE.tex")
    label = "call a set or a side so in the report or figure (repeat the option)"
    add("--label", type=label_of, action="append", default=[], metavar="NAME=TEXT", help=label)
    add("--figure", metavar="FILE", help="plot values over time instead: a .png, .svg or .pdf file")
    what = ("quality", "loss", "throughput")
    add("--what", choices=what, default=what[0], help="values of --figure (default: quality)")
    add("--csv", type=path, metavar="FILE", help="write a row per logged value instead")
    add("--tensorboard", type=path, metavar="DIR", help="write event files instead, a folder per run")


def add_explore(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", type=resolved, metavar="PATH", help="log, result set, or folder of several or a round")
    add("--out", type=Path, required=True, metavar="FILE", help="the .html file to write")
    of = f"{PRICE_HELP}; with SYSTEM=, of those whose name or hardware matches a pattern such as '*H100*' (repeat"
    of += " the option; the first that matches counts)"
    _add_price(parser, of, type=system_price, action="append", default=[], metavar="[SYSTEM=]USD[/accelerator]")


def _add_price(parser: ArgumentParser, text: str, **kind: Any) -> None:
    of_one: dict[str, Any] = {"type": price, "metavar": "USD", "help": text}
    parser.add_argument("--price", **of_one | kind)


def _add_config(
    parser: ArgumentParser,
    *,
    several: bool = False,
    optional: bool = False,
    described: bool = False,
    listed: bool = False,
) -> None:
    which = "import name of the benchmark, such as image_classification"
    parser.add_argument("benchmark", nargs="?" if several or listed else None, help=which)
    if several:
        parser.add_argument("configs", nargs="*", metavar="CONFIG")
    else:
        shown = "baseline, methods, FILE.json, 'methods-blurpool', ..."
        parser.add_argument("config", nargs="?", default="baseline" if optional else None, help=shown)
    parser.set_defaults(name=None)
    parser.add_argument("--data", help="dataset: the first part of a config's name")
    if described:
        parser.formatter_class, parser.epilog = RawDescriptionHelpFormatter, CONFIG_HELP


def _add_resources(parser: ArgumentParser, default: str = "torch's, within a CPU quota") -> None:
    parser.add_argument("--threads", type=int, default=0, help=f"CPU threads per rank (default: {default})")
    _add_data_folder(parser)


def _add_path(parser: ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, type=path, metavar="FILE", help=text)


def _add_paths(parser: ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, type=Path, nargs="+", default=[], metavar="PATH", help=text)


def _add_data_folder(parser: ArgumentParser, text: str = "folder of the dataset") -> None:
    default = os.environ.get("TIMEDRUN_DATA") or None
    parser.add_argument("--data-folder", type=path, default=default, help=f"{text} (default: $TIMEDRUN_DATA)")
