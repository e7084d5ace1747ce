"""The `timedrun` command: parse the command line, call the verb, turn errors into a message and an exit code."""

import atexit
import gc
import importlib
import os
import re
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from importlib.util import find_spec
from typing import Final

from judging.ground import stdio
from judging.ground.errors import ExitCode, UsageError, describe, in_benchmark
from mlevents.terminal_escape import printable, printable_lines
from timedrun.commands.parser import near_options, parser
from timedrun.evidence.warm_parent import WarmParent
from timedrun.runner.benchmark import find
from timedrun.runner.process import launch_env, parent_death_signal

TAKE_OVERRIDES: Final = ("show", "prepare", "run", "preflight", "race", "tune", "profile", "auto")
"""Verbs for which arguments that argparse does not know are config overrides, parsed by tyro."""

IN_TOML: Final = "{} in a file of TOML with the race (`timedrun race --help`)"
VARIABLE: Final = "torchrun's variable {}"
REPLACED: Final = {
    "--with": "CONFIG+METHOD, such as 'baseline+ema(half_life=40)'",
    "--without": "CONFIG-METHOD, such as methods-blurpool",
    "--only": "CONFIG+METHOD on a config that has no others, such as baseline+blurpool+label_smoothing",
    "--launcher": "--ranks N on each node; the variables of srun, mpirun and torchrun are read (or `unset RANK`)",
    "--nodes": VARIABLE.format("PET_NNODES"),
    "--node-rank": VARIABLE.format("PET_NODE_RANK"),
    "--master": VARIABLE.format("PET_MASTER_ADDR, and PET_MASTER_PORT"),
    "--restarts": VARIABLE.format("PET_MAX_RESTARTS"),
    "--emulated-precision": "--emulation allow, a setting of the config",
    "--prices": "--price USD, per hour of the system",
    "--number": "--results FOLDER/result_N.txt",
    "--label": "the variable TIMEDRUN_LABEL",
    "auto --epochs": "--budget N",
    "score --csv": "--json, which has the same values",
    "compare --unpaired": "--no-paired",
    "prepare --merges": "--vocabulary encoder.json, with vocab.bpe beside it",
    "package --submitter": "the organization of the runs: --submission.organization NAME of `timedrun run`",
    "race --base": "BASE CONFIG --ablate: the first of two configs is extended",
    "profile --positions": "--steps, which are measured at 5 positions of the schedule",
    "profile --skip": "nothing: the batches that the loader prefetches are left out",
    "doctor --completion": "it before the verb: timedrun --completion bash",
    "doctor --results": "nothing: the folder is runs; a run checks its own before it starts",
    "tune --first-seed": IN_TOML.format("first_seed"),
    "race --dry-run": "`timedrun profile` of each config, which estimates the time of its schedule",
    "profile --trace": "nothing: torch.profiler in train.py, or Nsight Systems around `timedrun run`, writes traces",
    "preflight --memory": "`timedrun profile ... --interleaved --synthetic`, which measures it on the device",
    "preflight --throughput": "nothing: the time is the samples of the run divided by it",
    **dict.fromkeys(("race --report", "tune --report"), "--resume FOLDER, or `timedrun report FOLDER` while it runs"),
    **{
        f"{verb} --{name}": IN_TOML.format(name.replace("-", "_"))
        for verb in ("race", "tune")
        for name in ("metric", "reported", "log", "seed-variable", "stop-at-target", "share", "repo", "split")
        + ("unpaired-seeds", "baseline-ratios", "checkpoint-minutes")
    },
    **{
        f"referee --{name}": f"{name.replace('-', '_')} in a file of TOML, as --limits FILE"
        for name in ("prepare-seconds", "answer-seconds", "late-seconds", "processes", "rows", "tolerance", "margin")
        + ("scratch",)
    },
}
"""What is given in place of an option that is gone, of all verbs or of one."""

SHOW_SETTINGS: Final = ("show", "prepare", "run", "preflight", "profile", "auto")
"""Verbs whose --help after a benchmark and a config prints the options of the config's settings."""

TRAINER: Final = ("torch", "tyro")
"""Packages of the extra `train`, which those who judge logs do without."""

RACES: Final = ("race", "tune")
"""Verbs whose runs are forked from a `WarmParent`, which imports torch at the same time as the verb."""

PREPARE_LONG: Final = ("run", "race", "tune", "preflight", "reproduce", "profile", "auto")
"""Verbs that name the stages before their first output, even where standard error is not a terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code (see `ExitCode`)."""
    stdio.open_closed()
    if os.getpid() == 1:  # of a container, whose first process gets no default action: until a run handles it
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(ExitCode.TERMINATED))
    # torch's modules would be collected for half a second when the process ends. Not with Triton: its bindings report
    # each object that is not collected.
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
    words = list(sys.argv[1:] if argv is None else argv)
    top = parser()
    if not words:
        top.print_help(sys.stderr)
        return int(ExitCode.USAGE)
    return called(words[0], lambda: call(top, words))


def call(top: ArgumentParser, words: Sequence[str]) -> int:
    """Parse a command line, call its verb and return the exit code."""
    if words[0] == "help":
        words = [*words[1:2], "--help"]
    if words[:2] == ["run", "command"]:
        top.error("`timedrun run command` ended: `timedrun race command COMMAND` runs a single one, too")
    helps = {"-h", "--help"} & {*words[3:]}
    if words[0] in RACES:
        from timedrun.commands import known_race, race_toml  # here, since they import most of judging

        arguments, rest = race_toml.parsed(top, words)
    elif helps and words[0] in SHOW_SETTINGS and not any(word.startswith("-") for word in words[1:3]):
        arguments, rest = top.parse_known_args([word for word in words if word not in helps])
        rest.append("--help")  # of the settings, printed by tyro
    else:
        arguments, rest = top.parse_known_args(words)
    verb = arguments.verb
    for word in (option.partition("=")[0] for option in rest):
        if instead := REPLACED.get(word) or REPLACED.get(f"{verb} {word}"):
            top.error(f"there is no option {word}: give {instead}")
    arguments.of_commands = of_commands = verb in RACES and known_race.is_of_commands(vars(arguments))
    if rest and (of_commands or verb not in TAKE_OVERRIDES):
        top.error(f"unrecognized arguments: {' '.join(rest)}. {' '.join(near_options(verb, rest))}".rstrip())
    if verb == "profile":  # configs after an option, which argparse does not take
        first = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
        arguments.configs, rest = [*arguments.configs, *rest[:first]], rest[first:]

    if not of_commands:
        named = [getattr(arguments, "config", None), *getattr(arguments, "configs", [])]
        configs = [str(text) for text in named if text is not None]
        for text in [*configs, str(getattr(arguments, "answers", None))]:
            files = [text[: match.end()] for match in re.finditer(r"\.json(?=[+-]|$)", text)]
            if files and not any(map(os.path.exists, files)) and verb != "doctor":
                raise UsageError(f"{files[0]} does not exist; nothing was done.")  # before torch is imported
        if verb in PREPARE_LONG and (name := getattr(arguments, "benchmark", None)):
            benchmark = find(name, working_directory=True)
            for text in filter(re.compile(r"[A-Za-z]\w*").fullmatch, configs):
                benchmark.config_name(text, getattr(arguments, "data", None))
            if getattr(arguments, "config", "") is None:
                raise UsageError(
                    f"give a config, such as `timedrun {verb} {name} baseline`; `timedrun show {name}` lists all."
                )
        announce(verb, arguments)
    if verb == "run":
        from timedrun.runner.process.process_times import CpuReading  # here, since to judge needs no psutil

        arguments.began = CpuReading.now()
    forks = verb in RACES and not of_commands and known_race.forks_runs(vars(arguments))
    with closing(WarmParent()) if forks and all(map(find_spec, TRAINER)) else nullcontext() as arguments.parent:
        function = getattr(importlib.import_module(f"timedrun.commands.{verb}"), verb)
        if of_commands or verb not in PREPARE_LONG:
            stdio.stage("")
        extra = (rest, words) if verb == "run" else (rest,) if verb in TAKE_OVERRIDES else ()
        try:
            return int(function(arguments, *extra))
        except SystemExit as ended:  # of tyro, which knows the config's settings and not the verb's options
            for sentence in near_options(verb, getattr(ended, "__notes__", ()) if ended.code else ()):
                stdio.message(f"timedrun {verb}: {sentence}")
            raise


def called(verb: str, function: Callable[[], int]) -> int:
    """Return the exit code of `function`, which runs `verb`; that of its error, after a message, if it raised one."""
    try:
        parent_death_signal.obey_environment()
        code = function()
        sys.stdout.flush()
        return code
    except (Exception, KeyboardInterrupt) as error:
        said = describe(error) or without_trainer(error)
        if said is None and (raised := in_benchmark(error)):
            shown, place = raised
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


def without_trainer(error: BaseException) -> tuple[ExitCode, str] | None:
    """Return the exit code and the message if `error` is the import of a package of the extra `train`, else None."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package not in TRAINER:
        return None
    return ExitCode.USAGE, f"{package} is not installed; nothing was done. Runs need pip install 'timedrun[train]'."


def announce(verb: str, arguments: Namespace) -> None:
    """Show that torch is being imported, which takes a second or many, if `verb` needs it; once a run, not a rank."""
    lists = verb == "show" and not arguments.config
    again = (verb != "reproduce" or arguments.run) and not lists and find_spec("torch")
    ranks = (os.environ.get(names[0], "0") for names in launch_env.TASKS)
    if again and verb in (*PREPARE_LONG, "show", "prepare", "doctor", "package") and set(ranks) == {"0"}:
        name = (os.environ.get(launch_env.LABEL) if verb == "run" else "") or f"timedrun {verb}"
        stdio.stage(f"{name}: preparing: importing torch", terminal_only=verb not in PREPARE_LONG)
