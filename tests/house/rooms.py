"""Rooms that a flow passes: `python -m tests.house.rooms` runs a config and two races on small data and counts them.

A room is a module. What flows passes a room if one of its functions gets it as an argument: from the first word to the
first step the command line and the config, from the first word to the report the command line and the plan of a race.
A return is a call from a room to one that imports it, so that a reader goes back."""

import os
import shlex
import sys
import tempfile
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from types import FrameType
from typing import Any, Final, NamedTuple

from tests.house import structure

COMMAND: Final = shlex.join([sys.executable, "-c", "import os; print('accuracy:0.9' + os.environ['SEED'])"])
READ: Final = ("--quality", "accuracy:{}", "--target", "0.5", "--runs", "1")
OF_RUN, OF_RACE = {"Namespace", "RunConfig"}, {"Namespace", "ConfigRequest", "CommandRequest", "RacePlan", "Race"}


class Path(NamedTuple):
    """A command line, the classes of what flows, and the function at which it ends, "" for the last one."""

    words: tuple[str, ...]
    kinds: set[str]
    end: str = ""


PATHS: Final = {
    "run": Path(("run", "image_classification", "digits_methods"), OF_RUN, "TimedRun.step_done"),
    "race of commands": Path(("race", "command", COMMAND, f"{COMMAND} again", *READ), OF_RACE),
    "race of configs": Path(("race", "image_classification", "digits_baseline", "digits_methods", *READ[-2:]), OF_RACE),
}


class Flow(NamedTuple):
    """Rooms in the order in which they are entered first, and the returns among them."""

    rooms: list[str]
    returns: list[tuple[str, str]]


class Ended(BaseException):
    """The flow has reached its end."""


def flow(path: Path) -> Flow:
    """Return the flow of a command line, which is run, with its runs in processes of their own, in a folder that is
    removed."""
    from timedrun.cli import main

    modules = structure.product_modules()
    entered: dict[str, None] = {}
    calls: dict[tuple[str, str], None] = {}

    def enter(frame: FrameType, event: str, _: Any) -> None:
        module, code = frame.f_globals.get("__name__"), frame.f_code
        if event != "call" or module not in modules:
            return
        if code.co_qualname == path.end:
            raise Ended
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names if name != "self"]
        if any(kind.__name__ in path.kinds for value in given for kind in type(value).__mro__):
            entered.setdefault(module)
            caller = frame.f_back
            while caller and caller.f_globals.get("__name__") not in modules:
                caller = caller.f_back
            if caller and caller.f_globals["__name__"] != module:
                calls.setdefault((caller.f_globals["__name__"], module))

    with ExitStack() as stack:
        folder, nothing = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(open(os.devnull, "w"))
        for context in (redirect_stdout(nothing), redirect_stderr(nothing), suppress(Ended)):
            stack.enter_context(context)
        sys.setprofile(enter)
        stack.callback(sys.setprofile, None)
        main([*path.words, "--results", f"{folder}/results"])
    imports = structure.imports()
    return Flow([*entered], [call for call in calls if call[0] in structure.reachable(call[1], imports)])


def main() -> None:
    for name, path in PATHS.items():
        rooms, returns = flow(path)
        print(f"{name}: {len(rooms)} rooms, {len(returns)} returns\n  {' > '.join(rooms)}")


if __name__ == "__main__":
    main()
