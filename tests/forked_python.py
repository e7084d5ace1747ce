"""Child processes of Python that are forked instead of started, since importing torch takes seconds.

A test that starts `python -m timedrun ...` gets a fork of the process of the tests, which has imported torch. It has
the arguments, environment, working directory, streams, process group, parent and exit code that the started one would
have, and so have the processes that it starts in turn; what tests patched and modules cached stays.
"""

import atexit
import concurrent.futures.thread
import contextlib
import faulthandler
import functools
import gc
import importlib
import io
import json
import logging
import multiprocessing.process
import multiprocessing.util
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn

import psutil

TESTS = Path(__file__).parent
IMPORTED = (
    *("torch", "torch._dynamo", "torch.distributed.run", "image_classification.train", "language_model.train"),
    *("timedrun.runner.run.worker", "timedrun.commands.run", "timedrun.commands.race", "timedrun.commands.reproduce"),
)
PACKAGE_CHECKER = (
    "mlperf_logging.package_checker.package_checker",
    "mlperf_logging.result_summarizer.result_summarizer",
)

PLAIN_OPTIONS = ("-P", "-u", "-X", "utf8")
ENVIRONMENTS = Path(tempfile.mkdtemp(prefix="environments_of_forks_"))
show_warning = warnings._showwarnmsg_impl  # pytest replaces it during a test


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen`, which forks this process where the command is this Python with a module of the project."""

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, pass_fds: Sequence[int], cwd: Any, env: Any,
        startupinfo: Any, creationflags: Any, shell: bool, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int,
        errread: int, errwrite: int, *rest: Any,
    ) -> None:  # fmt: skip
        environment = dict(os.environ if env is None else env)
        if shell or not forks(args):
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, p2cread,
                p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest,
            )  # fmt: skip
            return
        start_new_session, process_group = rest[-2:]
        faulthandler.cancel_dump_traceback_later()  # the fork has not its thread, for which it would wait
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                if start_new_session:
                    os.setsid()
                if process_group >= 0:
                    os.setpgid(0, process_group)
                streams = (p2cread, c2pwrite, errwrite)
                use_descriptors(streams, pass_fds)
                if preexec_fn:
                    preexec_fn()
                run([os.fspath(word) for word in args[1:]], environment, cwd)
            finally:
                os._exit(1)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def forks(command: Any) -> bool:
    """Return True for modules of timedrun, for torchrun, for code after -P, for a script of the tests and for one in
    the working folder; on a machine with a GPU, whose driver cannot be used after a fork, for none of these. Return
    True for MLCommons' package checker, most of whose second goes into imports; what checks single logs needs none."""
    if not isinstance(command, list | tuple) or command[0] != sys.executable:
        return False
    words = [str(word) for word in command[1:] if word not in PLAIN_OPTIONS]
    if words[0].endswith("mlcommons/child.py"):
        return '"package_checker"' in Path(words[1]).read_text() and all(map(importlib.import_module, PACKAGE_CHECKER))
    script = words[0].startswith(f"{TESTS}{os.sep}") or (words[0].endswith(".py") and os.sep not in words[0])
    module = words[0] == "-m" and (words[1].partition(".")[0] == "timedrun" or words[1] == "torch.distributed.run")
    return (script or module or [*command[1:3]] == ["-P", "-c"]) and not import_modules()


@functools.cache
def import_modules() -> bool:
    """Import what the forks, and theirs, need; return True if there is a GPU."""
    for name in (*IMPORTED, *PACKAGE_CHECKER):
        importlib.import_module(name)
    import torch

    return torch.cuda.is_available()


def use_descriptors(streams: tuple[int, int, int], kept: Sequence[int]) -> None:
    """Make `streams` (-1: as they are) the standard streams and close all other descriptors but `kept`."""
    for number, descriptor in enumerate(streams):
        if descriptor >= 0:
            os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def run(words: list[str], environment: dict[str, str], cwd: Any) -> NoReturn:
    """Become the process of `python *words` and exit."""
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    forget()
    (ENVIRONMENTS / str(os.getpid())).write_text(json.dumps(environment))
    code: Any = 0
    try:
        safe_path = "-P" in words[:2]
        words = [word for number, word in enumerate(words) if number > 2 or word not in PLAIN_OPTIONS]
        if words[0] == "-m":
            sys.argv = words[1:]
            if not safe_path:
                sys.path.insert(0, os.getcwd())
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv, sys.path[:] = ["-c", *words[2:]], environment.get("PYTHONPATH", "").split(os.pathsep) + sys.path
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv = words
            if not safe_path:
                sys.path.insert(0, os.path.dirname(words[0]))
            for name in [name for name in sys.modules if words[0].endswith("child.py") and "mlperf_logging" in name]:
                del sys.modules[name]  # a copy with other rules may be meant
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # waits for its threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):
            stream.flush()
    os._exit(code or 0)


def forget() -> None:
    """Undo what the tests and the parent have set in this process."""
    gc.freeze()
    # A run's end unfreezes: the parent's garbage, such as a store, would then be freed without its threads, and abort.
    gc.unfreeze = lambda: None
    atexit._clear()
    faulthandler.enable(2)  # its file was pytest's
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = io.TextIOWrapper(
            open(number, "wb" if number else "rb", buffering=-1, closefd=False),  # noqa: SIM115
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "strict",
            line_buffering=number == 2 or os.isatty(number),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.excepthook, sys.unraisablehook, threading.excepthook = (
        *(sys.__excepthook__, sys.__unraisablehook__),
        threading.__excepthook__,
    )
    warnings._showwarnmsg_impl = show_warning
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    logging.disable(logging.NOTSET)
    forkserver._forkserver.__init__()
    resource_tracker._resource_tracker.__init__()
    multiprocessing.util._finalizer_registry.clear()
    multiprocessing.process._children.clear()  # those of the parent, for which this process would wait at its end
    concurrent.futures.thread._threads_queues.clear()
    atexit.register(multiprocessing.util._exit_function)
    tempfile.tempdir = None
    random.seed()
    if "torch" in sys.modules:
        import torch

        torch.seed()
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))


def install() -> None:
    """Replace `subprocess.Popen`."""
    subprocess.Popen = ForkedPopen


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process: of a fork that which it was given, for which the kernel has its parent's."""
    with contextlib.suppress(FileNotFoundError):
        given: dict[str, str] = json.loads((ENVIRONMENTS / str(process.pid)).read_text())
        return given
    return process.environ()


CLIENT = """
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
request = json.dumps([{words} + sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [b"-"], [0, 1, 2])
server.sendall(request)
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(9) or 1))
"""


@contextlib.contextmanager
def forking_command(folder: Path) -> Iterator[None]:
    """Make the commands `timedrun` and `python` in `folder`, which have the process of the tests fork, for scripts of
    the shell."""
    path = str(folder / "socket")
    for name, words in (("timedrun", ["-P", "-m", "timedrun"]), ("python", [])):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{CLIENT.format(path=path, words=words)}")
        (folder / name).chmod(0o755)

    def answer(connection: socket.socket) -> None:
        with connection:
            _, streams, _, _ = socket.recv_fds(connection, 1, 3)
            words, environment, cwd = json.loads(connection.makefile("rb").read())
            stdin, stdout, stderr = streams
            process = subprocess.Popen(
                [sys.executable, *words], env=environment, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr
            )
            for stream in streams:
                os.close(stream)
            connection.sendall(str(process.wait() % 256).encode())

    def serve() -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=answer, args=[server.accept()[0]]).start()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
