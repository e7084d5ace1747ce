"""Sandbox of submitted code: Linux namespaces without network, with a read-only view of Python and the training data.

The root is an empty folder in memory into which only the programs, Python, this package and the training data are
mounted, read-only; the home, the validation data and all other files are absent. Set up with util-linux (`unshare`,
`mount`, `pivot_root`), for all sessions; the server gives each namespaces of its own. Files of the submission are sent
over a socket, not mounted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from judging.ground.errors import TimedrunError, UsageError
from referee.channel import COMPILED, NO_DEVICE

TOOLS: Final = ("unshare", "mount", "umount", "pivot_root", "sh")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEM: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr")
FILES: Final = ("/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system/cpu")
DEVICES: Final = ("null", "zero", "full", "random", "urandom")
WORK: Final = "/referee"
"""Working folder of isolated code. `/tmp` is a link to it, or to a folder in it if the environment itself is there."""
DROP: Final = Path("/proc/sys/vm/drop_caches")
PACKAGE: Final = Path(__file__).resolve().parent
WATCH: Final = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
READY_SECONDS: Final = 120.0
MOST_SHARDS: Final = 250
"""Shards of a session, whose descriptors one message carries."""


class SandboxUnavailable(TimedrunError):
    """Machine that allows no namespaces, or lacks the tools to create them."""


class WatchedFolder:
    """New folder in `parent`, the system's by default, that `close` removes, or a process that sees this one end."""

    def __init__(self, parent: Path | None = None) -> None:
        self.name = tempfile.mkdtemp(prefix="timedrun_referee_", dir=parent)
        command = [sys.executable, "-ISc", WATCH, self.name]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.name, ignore_errors=True)
        self._watcher.kill()
        self._watcher.communicate()


@dataclass(frozen=True)
class Shard:
    """Tokens in a file: `count` of `dtype` from byte `offset` on."""

    path: Path
    offset: int
    count: int
    dtype: str


@dataclass(frozen=True)
class Tally:
    """Processes and threads of a session, those that run or wait for a core, memory, and CPU seconds.

    A page of memory that several processes share, and one of a file, counts for each of them. `waited` has each
    thread's seconds of waiting for a core (schedstat of proc), by its number.
    """

    tasks: int
    running: int
    memory_bytes: int
    cpu_seconds: float
    waited: dict[int, float]


def readable() -> list[Path]:
    """Return the folders that submitted code can read besides those of the system."""
    prefixes = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), Path(sys.prefix), PACKAGE}
    return sorted(path for path in prefixes if not path.is_relative_to("/usr"))


def read_ahead(folders: Iterable[Path]) -> bool:
    """Read all files below `folders` into the page cache, where a session's reading of one then leaves no trace that
    another could see by the time of its own; return False if they would take half of the memory that is available."""
    room = psutil.virtual_memory().available // 2
    for folder in folders:
        for _, _, names, where in os.fwalk(folder):
            for name in names:
                try:
                    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=where)
                except OSError:  # a link, or a file that submitted code cannot read either
                    continue
                with open(file, "rb", buffering=0) as opened:
                    room -= os.fstat(file).st_size
                    with contextlib.suppress(OSError):  # not a regular file
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            if room < 0:
                return False
    return True


def mounts(root: str, data: Mapping[str, Sequence[Shard]]) -> str:
    """Return the shell commands that build the sandbox's root in the folder `root` and enter it."""
    lines = ["set -e", f"export PATH={PATH}"]
    lines.append(f"mount -t tmpfs -o mode=755,size=16m tmpfs {shlex.quote(root)} && cd {shlex.quote(root)}")

    def bind(source: str | Path, target: str | Path, options: str = "remount,bind,ro,nosuid,nodev") -> None:
        inside, outside = shlex.quote(f".{target}"), shlex.quote(str(source))
        parent = shlex.quote(os.path.dirname(f".{target}"))
        lines.append(f"mkdir -p {parent}; if [ -d {outside} ]; then mkdir -p {inside}; else : >{inside}; fi")
        lines.append(f"mount --rbind {outside} {inside} && mount -o {options} {inside}")

    for path in map(Path, SYSTEM):
        if path.is_symlink():
            lines.append(f"ln -s {shlex.quote(os.readlink(path))} .{path}")
        elif path.is_dir():
            bind(path, path)
    for path in [*filter(Path.exists, map(Path, FILES)), *readable()]:
        bind(path, path)
    for device in [*(Path("/dev", name) for name in DEVICES), *sorted(Path("/dev").glob("nvidia*"))]:
        bind(device, device, "remount,bind,ro,nosuid")  # they can be written to; their times cannot be set
    lines += ["mkdir -p etc", "echo 127.0.0.1 localhost >etc/hosts", "echo hosts: files >etc/nsswitch.conf"]
    lines.append("mkdir data && mount -t tmpfs -o mode=755,size=16m tmpfs data")  # removed by the server
    for name, shards in data.items():
        for number, shard in enumerate(shards):
            bind(shard.path.resolve(), f"/data/{name}{number}")
    lines += [
        f"mkdir -p .{WORK} proc put_old && ln -s {WORK} dev/shm && mount -t proc proc proc",
        f"mount -t tmpfs -o mode=755,nosuid,nodev,size=1m tmpfs .{WORK}",  # the server's; a session has its own
        f"[ -e tmp ] || ln -s {WORK} tmp",
        "pivot_root . put_old && cd / && umount -l /put_old && rmdir /put_old",
        "mount -o remount,bind,ro,nosuid,nodev /",
    ]
    return "\n".join(lines)


class Sandbox:
    """Run the server in a sandbox, or as a plain process, until it is closed.

    Args:
        data: shards of each data set that sessions can be given.
        device: torch's name of a device that must be there.
        work_bytes: size of the only folder that can be written, in memory.
        isolated: False runs submitted code with all rights of the user; for machines without namespaces.

    Raises:
        SandboxUnavailable: the machine cannot isolate a process; the message says why and what to do.
        UsageError: torch cannot use the device.
    """

    def __init__(
        self,
        data: Mapping[str, Sequence[Shard]],
        *,
        device: str = "cpu",
        work_bytes: int = 1 << 30,
        isolated: bool = True,
    ) -> None:
        self.isolated = isolated
        self._folder = WatchedFolder()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = ""
        work = WORK if isolated else os.path.join(self._folder.name, "work")
        command = [sys.executable, "-m", "referee.server", str(other.fileno())]
        environment = {"PATH": PATH, "HOME": work, "TMPDIR": work, "USER": "referee", "LANG": "C.UTF-8"}
        environment |= {"PYTHONPATH": os.fspath(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"VIRTUAL_ENV": sys.prefix, "GOMP_SPINCOUNT": "10000"}  # beside other work, threads soon sleep
        for cache in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
            environment[cache] = os.path.join(work, COMPILED, cache.partition("_")[0].lower())
        kept = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
        environment |= {name: os.environ[name] for name in kept if name in os.environ}
        if isolated:
            if missing := [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]:
                self._refuse(f"{' and '.join(missing)} not found; install util-linux 2.33 or newer")
            user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            spaces = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
            script = f"{mounts(self._folder.name, data)}\nexec {shlex.join(command)} </dev/null"
            command = ["unshare", *user, *spaces, "sh"]
        else:
            os.mkdir(work)
        with tempfile.TemporaryFile() as commands:  # of many shards, they are longer than an argument may be
            commands.write(os.fsencode(script))
            commands.seek(0)
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=commands,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        other.close()
        self.control.settimeout(READY_SECONDS)
        with contextlib.suppress(OSError):  # it has ended; the reply says so
            self.control.send(json.dumps(self._arguments(data, work, work_bytes) | {"device": device}).encode())
        self._wait_for("open")
        if isolated:  # the server's root is mounted elsewhere now; a referee that is killed leaves no folder
            self._folder.close()

    def wait(self) -> None:
        """Wait until the server can start sessions; the files of the data may be gone."""
        system = [path for path in map(Path, SYSTEM) if path.is_dir() and not path.is_symlink()]
        self.cached = self.isolated and read_ahead([*system, *readable()])
        self.forgets = self.isolated and self._drop_caches()
        self._wait_for("ready")

    def _drop_caches(self) -> bool:
        """Drop the kernel's memory of looked up names, and of files' pages unless all are there; return False if this
        process may not."""
        try:
            DROP.write_text("2" if self.cached else "3")
        except OSError:
            return False
        return True

    def _wait_for(self, message: str) -> None:
        try:
            reply = self._reply()
        except BaseException:  # a signal
            self.close()
            raise
        if reply.startswith(NO_DEVICE):
            self.close()
            raise UsageError(f"--device: {reply.removeprefix(NO_DEVICE)}. No submitted code was run.")
        if reply != message:
            self._errors.seek(0)
            self._refuse(self._errors.read()[-2000:].decode(errors="replace").strip() or "it ended without a message")

    def _arguments(self, data: Mapping[str, Sequence[Shard]], work: str, work_bytes: int) -> dict[str, Any]:
        options: dict[str, list[list[Any]]] = {}
        for name, shards in data.items():
            paths = [f"/data/{name}{n}" if self.isolated else os.fspath(s.path) for n, s in enumerate(shards)]
            options[name] = [[path, s.offset, s.count, s.dtype] for path, s in zip(paths, shards, strict=True)]
        # Of the machine a session sees nothing in /proc: its counters could be read as notes. A GPU's driver needs it.
        shown = "hidepid=invisible" if any(Path("/dev").glob("nvidia*")) else "hidepid=invisible,subset=pid"
        told = {"isolated": self.isolated, "root": os.geteuid() == 0, "proc": shown}
        told["within_tmp"] = [os.fspath(path) for path in readable() if path.is_relative_to("/tmp")]
        return {"data": options, "work": work, "work_bytes": work_bytes, **told}

    def _refuse(self, reason: str) -> None:
        self.close()
        raise SandboxUnavailable(
            f"no sandbox could be created: {reason}\nNo submitted code was run. Allow user namespaces, or run as root "
            "on a machine of its own, or set --no-sandbox, which runs the code with all of your rights."
        )

    def _reply(self) -> str:
        try:
            return self.control.recv(1 << 12).decode(errors="replace")
        except OSError:  # a time-out, or the server has ended
            return ""

    def fork(self, output: int) -> socket.socket:
        """Start a session whose standard output and error go to `output`; return the connection to it."""
        if self.forgets:
            self._drop_caches()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"fork"], [theirs.fileno(), output])
        return ours

    def load_compiler(self) -> None:
        """Import torch's compiler, which takes a second, once for all sessions."""
        self.control.send(b"compiler")

    def give_data(self, name: str) -> None:
        """Give the session a data set."""
        self.control.send(f"data {name}".encode())

    def end(self) -> bool:
        """Kill all processes of the session and remove its files; return False if that failed."""
        try:
            self.control.send(b"end")
        except OSError:
            return False
        return self._reply() == "clean"

    def tally(self) -> Tally:
        """Return the number and memory of the session's processes and threads, of which the server and the first of
        the session's namespace are none."""
        server, processes = self._processes()
        states, memory, cpu = "", 0, 0.0
        waited: dict[int, float] = {}
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                cpu += sum(process.cpu_times()[:4])  # its own and those of its ended children
                if process.ppid() == server:
                    continue
                memory += process.memory_info().rss
                for thread in Path(f"/proc/{process.pid}/task").iterdir():
                    states += (thread / "stat").read_text().rpartition(")")[2][1]
                    with contextlib.suppress(OSError):  # a kernel that does not account for waits
                        waited[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return Tally(len(states), states.count("R"), memory, cpu, waited)

    def memory_bytes(self) -> int:
        """Return the memory of the session's processes, in which a page of several counts once (proportional set
        size)."""
        total = 0
        for process in self._processes()[1]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def _processes(self) -> tuple[int | None, list[psutil.Process]]:
        """Return the number of the server, if it is apart, and the processes of the session."""
        try:
            processes = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            processes = []
        return processes.pop(0).pid if self.isolated and processes else None, processes

    def close(self) -> None:
        """End the server and with it every process in the sandbox."""
        self.control.close()
        if hasattr(self, "process"):
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._errors.close()
        self._folder.close()
